"""One training run over all its attempts: what `run.json` holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dflash_pipeline.contracts.errors import ContractBroken

AttemptStatus = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One launch of the ranks. One that was killed stays "running"; the next attempt supersedes it."""

    number: int
    num_ranks: int
    first_step: int
    """Global step it resumed from."""
    status: AttemptStatus
    last_step: int
    """Global step it reached; of a killed attempt, where it began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Named by the fingerprint of (plan, target, drafter, settings, weights of a warm start); one MLflow run in all."""

    run: str
    plan: str
    target: str
    total_steps: int
    mlflow_run_id: str | None = None
    attempts: tuple[Attempt, ...] = ()

    def __post_init__(self) -> None:
        for expected, attempt in enumerate(self.attempts, start=1):
            if attempt.number != expected:
                raise ContractBroken(
                    f"attempt {attempt.number} stands where attempt {expected} belongs",
                    where=f"run {self.run}",
                    fix="number attempts from 1 without gaps",
                )

    @property
    def status(self) -> Literal["not started", "running", "finished", "stopped", "failed"]:
        return self.attempts[-1].status if self.attempts else "not started"

    @property
    def next_attempt(self) -> int:
        return max((a.number for a in self.attempts), default=0) + 1

    def with_attempt(self, attempt: Attempt) -> RunRecord:
        """The record with this attempt added, or in place of the one with its number."""
        kept = tuple(a for a in self.attempts if a.number != attempt.number)
        return replace(self, attempts=(*kept, attempt))

    def with_mlflow_run(self, run_id: str) -> RunRecord:
        return replace(self, mlflow_run_id=run_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSpent:
    """How far a run came, and where its time went, over all steps that count."""

    epochs_done: int
    run_fraction: float
    run_cost_fraction: float
    hours: float
    supervised_tokens_per_second: float
    samples_per_second: float
    shares: Mapping[str, float]
    """Of the time, by what it went into; what is left of 1 is neither waiting nor computing, saving for example."""
    imbalance: float | None
    """The busiest rank's time over the mean of all; None where no rank's is known."""
    peak_share: float | None
    """Of the devices' peak arithmetic; None where no peak is known."""
    memory_bytes: int
    """Most of any rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoolMark:
    """How far a run's event log has been sent: what `sent.json` holds."""

    spool: str
    """Tag of the MLflow run by which it is found again when the answer to its making was lost."""
    mlflow_run_id: str | None
    offset: int
    """Bytes of the log that have arrived there."""

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise ContractBroken(f"offset {self.offset}", where=f"spool {self.spool}", fix="count bytes from 0")
