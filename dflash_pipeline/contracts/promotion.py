"""Which drafter of a recipe is the champion, and why: measured values in, a decision with its reason out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dflash_pipeline.contracts.errors import ContractBroken

Action = Literal["promoted", "kept", "rolled back"]
"""`kept`: the champion stays, if there is one, and the drafter is a challenger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A drafter that can be champion: where it lies, and what it was made from."""

    run: str
    export: str
    """Name of its folder in exports/."""
    weights: str
    """SHA-256 of its model.safetensors: the same weights are the same contender."""
    target: str
    """Fingerprint of the target with its tokenizer: only drafters of one target can be compared."""
    snapshot: str
    plan: str
    mlflow_run_id: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceMean:
    """Acceptance on the prompts of one source."""

    source: str
    num_prompts: int
    mean: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What was measured of a drafter: mean acceptance length over prompts with its 95 % interval, and by source."""

    mean: float
    interval: tuple[float, float]
    sources: tuple[SourceMean, ...]

    def __post_init__(self) -> None:
        if not self.interval[0] <= self.interval[1] or self.mean < 1:
            raise ContractBroken(
                f"acceptance length {self.mean} with interval {self.interval}",
                where="promotion",
                fix="a round yields at least one token, and an interval begins below its end",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceChange:
    """One source's acceptance with the champion and with the challenger."""

    source: str
    num_prompts: int
    before: float
    after: float

    @property
    def loss(self) -> float:
        """Share of the champion's acceptance length that is lost; negative where it grew."""
        return (self.before - self.after) / self.before


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Challenger less champion, on the same prompts."""

    mean: float
    interval: tuple[float, float]
    """Paired, over prompts, 95 %."""
    sources: tuple[SourceChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromotionRules:
    """What a drafter must do to become champion."""

    floor: float | None
    """Acceptance length that a first champion must exceed; None for the end of the untrained drafter's interval."""
    most_source_loss: float
    """Share of its acceptance length that a source may lose."""

    def __post_init__(self) -> None:
        if not 0 <= self.most_source_loss < 1:
            raise ContractBroken(
                f"most_source_loss {self.most_source_loss}",
                where="promotion.most_source_loss",
                fix="give a share from 0 to below 1",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Whether the drafter becomes champion, and why in a sentence."""

    promote: bool
    reason: str
    difference: Difference | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromotionDecision:
    """One line of promotions.jsonl: what was decided about a contender of a recipe, and who is champion since."""

    recipe: str
    action: Action
    reason: str
    contender: Contender
    """Who was judged; for `rolled back` the one that lost its place."""
    champion: Contender | None
    """Who is champion from here on."""
    by_hand: bool
    standing: Standing | None
    difference: Difference | None
    basis: str
    """Fingerprint of all that was compared: the same comparison is not decided twice."""
    unix_seconds: float

    def __post_init__(self) -> None:
        if self.action == "promoted" and self.champion != self.contender:
            raise ContractBroken(
                "promoted, and another is champion", where="promotion", fix="who is promoted is champion from then on"
            )
        if not self.reason:
            raise ContractBroken("a decision without a reason", where="promotion", fix="say in a sentence why")


def judge_first(standing: Standing, untrained: Standing, rules: PromotionRules) -> Judgement:
    """A first champion must be better than nothing: than the floor, or than the untrained drafter for certain."""
    floor, of = (untrained.interval[1], "of the untrained drafter") if rules.floor is None else (rules.floor, "floor")
    # Against measured chance a certain gain is asked for; a floor that a person set is compared with the mean.
    reached = standing.interval[0] if rules.floor is None else standing.mean
    what = f"acceptance length {standing.mean:.3f} (95 % from {standing.interval[0]:.3f})"
    if reached > floor:
        return Judgement(promote=True, reason=f"first champion: {what} is above {floor:.3f}, {_named(of)}")
    return Judgement(promote=False, reason=f"no champion yet: {what} is not above {floor:.3f}, {_named(of)}")


def judge_challenger(difference: Difference, rules: PromotionRules) -> Judgement:
    """Better for certain on the whole, and on no source worse by more than the set share."""
    low, high = difference.interval
    what = f"the difference of acceptance lengths is {difference.mean:+.3f} (95 %: {low:+.3f} to {high:+.3f})"
    losing = [change for change in difference.sources if change.loss > rules.most_source_loss]
    if low <= 0:
        reason = f"{what}, which is not certainly a gain"
        return Judgement(promote=False, reason=reason, difference=difference)
    if losing:
        worst = max(losing, key=lambda change: change.loss)
        reason = (
            f"{what}, but {worst.source} loses {worst.loss:.1%} ({worst.before:.3f} to {worst.after:.3f} on "
            f"{worst.num_prompts} prompts), more than {rules.most_source_loss:.1%}"
        )
        return Judgement(promote=False, reason=reason, difference=difference)
    reason = f"{what}, and no source loses more than {rules.most_source_loss:.1%}"
    return Judgement(promote=True, reason=reason, difference=difference)


def reign(decisions: Iterable[PromotionDecision]) -> tuple[Contender, ...]:
    """Champions in office and before, as decisions in order made them: the last one reigns, the one before is kept.

    A rollback takes the last one off; so two rollbacks lead two champions back.
    """
    line: list[Contender] = []
    for decision in decisions:
        if decision.action == "promoted":
            line.append(decision.contender)
        elif decision.action == "rolled back" and line:
            line.pop()
    return tuple(line)


def taken_back(decisions: Iterable[PromotionDecision], weights: str) -> bool:
    """Whether a person took this drafter's place away, and nobody promoted it by hand since."""
    back = False
    for decision in decisions:
        if decision.contender.weights == weights and decision.action != "kept":
            back = decision.action == "rolled back"
    return back


def _named(of: str) -> str:
    return "promotion.floor" if of == "floor" else f"the end of the interval {of}"
