"""One training run over all its attempts: what `run.json` holds."""

from __future__ import annotations

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
    """A run is named by the fingerprint of (plan, target, drafter, settings); attempts add up to one MLflow run."""

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
