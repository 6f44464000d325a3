"""What limits throughput, in one sentence, and what a run would gain without it. Pure.

Of the seconds of some steps, as shares:

    data            waiting for prepared data
    target forward  the target's forward
    drafter         the drafter's forward, the loss, backward and update
    imbalance       largest less mean busy time of the ranks, as far as it is within the time in collectives
    communication   the rest of the time in collectives

The first, fourth and fifth are waiting: the largest of them is the limit from `MUCH_WAITING` on. Otherwise it is the
larger of target and drafter, from `STANDS_OUT` on. Parts are means over ranks: of two ranks, one that does everything
twice as slowly makes the other wait a third of the time. Where one rank alone waits for data, the others wait for it in
collectives: that counts as communication. The first step of an attempt is left out, which pays for what is done once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.events import StepRecord

Part = Literal["data", "target forward", "drafter", "communication", "imbalance"]
PARTS: tuple[Part, ...] = get_args(Part)
Limit = Part | Literal["balanced"]

WAITING: tuple[Part, ...] = ("data", "communication", "imbalance")
MUCH_WAITING = 0.25
STANDS_OUT = 0.4
"""Least shares of the time by which a part is called the limit: of waiting, and of work."""
WORTH_A_WORD = 0.05
"""Share of the time from which on a saving is named."""
_SAYS: dict[Limit, str] = {
    "data": "waiting for data limits throughput",
    "target forward": "the target's forward limits throughput",
    "drafter": "the drafter limits throughput: its forward, backward and update",
    "communication": "communication between ranks limits throughput",
    "imbalance": "waiting for the slowest rank limits throughput",
    "balanced": "no single part limits throughput",
}
_WITHOUT: dict[Part, str] = {
    "data": "a perfect loader",
    "target forward": "features that are kept on disk",
    "communication": "free communication",
    "imbalance": "a perfect balance of ranks",
}
"""What would take a part away. Nothing takes the drafter away: it is what is trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What limited some steps."""

    limit: Limit
    share: float
    """Of the time, by the limit; of the largest part where nothing stands out."""
    shares: tuple[tuple[Part, float], ...]
    """Of every part; what is missing to 1 is none of them."""
    sentence: str

    def __post_init__(self) -> None:
        if tuple(name for name, _ in self.shares) != PARTS or not 0 <= self.share <= 1:
            raise ContractBroken(
                f"shares of {[name for name, _ in self.shares]}, limit {self.share}",
                where="verdict",
                fix="give the share of every part, each from 0 to 1",
            )


def verdict(steps: Iterable[StepRecord]) -> Verdict | None:
    """Over these steps; None where no step says where its time went."""
    timed = [step for step in _without_first(steps) if step.rank_busy_seconds and step.seconds > 0]
    if not timed:
        return None
    seconds = sum(step.seconds for step in timed)
    shares = {name: min(1.0, spent / seconds) for name, spent in _spent(timed).items()}
    waiting, work = (max(parts, key=shares.__getitem__) for parts in (WAITING, [p for p in PARTS if p not in WAITING]))
    limit: Limit = "balanced"
    if shares[waiting] >= MUCH_WAITING:
        limit = waiting
    elif shares[work] >= STANDS_OUT:
        limit = work
    largest = max(shares, key=shares.__getitem__) if limit == "balanced" else limit
    several = any(len(step.rank_busy_seconds) > 1 for step in timed)
    return Verdict(
        limit=limit,
        share=shares[largest],
        shares=tuple(shares.items()),
        sentence=_sentence(limit, largest, shares, several=several),
    )


def _without_first(steps: Iterable[StepRecord]) -> list[StepRecord]:
    """Steps but the first of each attempt; all, where there are no others."""
    given = list(steps)
    later = [step for before, step in pairwise(given) if before.attempt == step.attempt]
    return later or given


def _spent(steps: Sequence[StepRecord]) -> dict[Part, float]:
    """Seconds of each part, in the order of `PARTS`."""
    uneven = [min(_imbalance(step.rank_busy_seconds), step.communication_seconds) for step in steps]
    return {
        "data": sum(step.data_wait_seconds for step in steps),
        "target forward": sum(step.target_seconds for step in steps),
        "drafter": sum(step.drafter_seconds + step.backward_seconds + step.optimizer_seconds for step in steps),
        # By steps: a difference of two sums may be a little below nothing.
        "communication": sum(step.communication_seconds - wait for step, wait in zip(steps, uneven, strict=True)),
        "imbalance": sum(uneven),
    }


def _imbalance(busy: Sequence[float]) -> float:
    """What the mean rank waits for the slowest."""
    # As a mean of differences: the mean of equal times may come out a little above each.
    return sum(max(busy) - rank for rank in busy) / len(busy)


def _sentence(limit: Limit, largest: Part, shares: dict[Part, float], *, several: bool) -> str:
    says = f"{_SAYS[limit]} ({largest} is {shares[largest]:.0%} of the time"
    says += ", the largest part)" if limit == "balanced" else ")"
    # A rank alone spends a little time in collectives, too, but nothing would make it less.
    parts = [part for part in _WITHOUT if several or part not in ("communication", "imbalance")]
    savings = sorted(((shares[part], _WITHOUT[part]) for part in parts), reverse=True)
    named = [f"{what} would save {share:.0%}" for share, what in savings if share >= WORTH_A_WORD]
    return "; ".join([says, *named[:2]])
