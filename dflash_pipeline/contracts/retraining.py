"""Whether a tick of the schedule or of the sensor starts a training, decided from what is known. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_pipeline.contracts.errors import ContractBroken

PassState = Literal["unfinished", "succeeded", "failed", "canceled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierPass:
    """One run of the whole chain, whoever started it."""

    run_id: str
    inputs: str | None
    """Digest of the inputs it was started for; None where nobody noted it."""
    state: PassState
    at: float
    """Unix seconds: when it ended, or when it was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Start, or the reason why not. The reason stands on the tick's page."""

    start: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How a failed training is tried again without a person."""

    retries: int
    """So often after the first failure with the same inputs."""
    first_wait_seconds: float
    """Before the first retry; doubled for each one after it."""

    def __post_init__(self) -> None:
        if self.retries < 0 or not self.first_wait_seconds >= 0:
            raise ContractBroken(
                f"{self.retries} retries, first wait {self.first_wait_seconds} s",
                where="retraining",
                fix="give none of them below 0",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """Inputs as a sensor saw them: half-written files show as a digest that goes on changing."""

    digest: str
    since: float
    """Unix seconds since when they have looked the same."""

    def seen_again(self, digest: str, now: float) -> Watched:
        return self if digest == self.digest else Watched(digest=digest, since=now)


def decide(passes: Sequence[EarlierPass], inputs: str) -> Decision:
    """For a clock: whatever has changed or failed is trained, one at a time. `passes` are the newest first."""
    going = next((p for p in passes if p.state == "unfinished"), None)
    if going is not None:
        return Decision(start=False, reason=f"run {going.run_id[:8]} is still going on; the next tick looks again")
    last = next((p for p in passes if p.inputs == inputs), None)
    if last is None:
        return Decision(start=True, reason="sources, target or recipe changed since the last run of the whole chain")
    if last.state == "succeeded":
        return Decision(
            start=False, reason=f"run {last.run_id[:8]} has trained on the same sources, target and recipe already"
        )
    return Decision(start=True, reason=f"run {last.run_id[:8]} with the same inputs {last.state}: tried again")


def decide_soon(
    passes: Sequence[EarlierPass],
    watched: Watched,
    *,
    now: float,
    settle_seconds: float,
    patience: Patience,
) -> Decision:
    """For a sensor, which asks every minute: as `decide`, but changes must have settled and failures are waited for."""
    quiet = now - watched.since
    if quiet < settle_seconds:
        return Decision(
            start=False,
            reason=f"the inputs changed {quiet:,.0f} s ago; they are taken once nothing changes for "
            f"{settle_seconds:,.0f} s",
        )
    decision = decide(passes, watched.digest)
    with_these = [p for p in passes if p.inputs == watched.digest]
    if not decision.start or not with_these:
        return decision
    newest = with_these[0]
    if newest.state == "canceled":
        return Decision(
            start=False,
            reason=f"run {newest.run_id[:8]} was canceled by a person: start it again by hand, or by the clock",
        )
    failures = sum(p.state == "failed" for p in with_these)
    if failures > patience.retries:
        return Decision(
            start=False,
            reason=f"{failures} runs with these inputs failed, the last {newest.run_id[:8]}: see its page, mend it, "
            "and start it by hand",
        )
    wait = patience.first_wait_seconds * 2 ** (failures - 1)
    if now - newest.at < wait:
        return Decision(
            start=False,
            reason=f"run {newest.run_id[:8]} failed {now - newest.at:,.0f} s ago; tried again after {wait:,.0f} s",
        )
    return decision
