"""The only place where steps of different epochs are added up. True across the run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import NewType

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.manifest import EpochSummary

GlobalStep = NewType("GlobalStep", int)
"""Optimiser steps done since the start of the run."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Position:
    """How far a run is: `step` steps of `epoch` are done. The resume point, and what a checkpoint stores."""

    epoch: int
    step: int

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.step < 0:
            raise ContractBroken(
                f"position epoch {self.epoch} step {self.step}", where="position", fix="count epochs and steps from 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """Totals over all epochs of a run, sealed before step 0. Holds no micro-batches."""

    snapshot: str
    spec: BatchingSpec
    epochs: tuple[EpochSummary, ...]

    def __post_init__(self) -> None:
        if not self.epochs:
            raise ContractBroken("a plan without epochs", where="plan", fix="plan at least one epoch")
        for expected, summary in enumerate(self.epochs):
            if summary.epoch != expected:
                raise ContractBroken(
                    f"epoch {summary.epoch} stands where epoch {expected} belongs",
                    where="plan",
                    fix="seal epochs 0, 1, 2 … in order",
                )
            if summary.num_steps < 1 or not summary.cost > 0:
                raise ContractBroken(
                    f"{summary.num_steps} steps at cost {summary.cost}",
                    where=f"plan epoch {expected}",
                    fix="an epoch has at least one step, and steps have a cost",
                )

    @property
    def fingerprint(self) -> str:
        return fingerprint(snapshot=self.snapshot, spec=self.spec.fingerprint, epochs=[e.digest for e in self.epochs])

    @property
    def num_epochs(self) -> int:
        return len(self.epochs)

    @property
    def total_steps(self) -> int:
        return sum(e.num_steps for e in self.epochs)

    @property
    def total_cost(self) -> float:
        return math.fsum(e.cost for e in self.epochs)

    @property
    def end(self) -> Position:
        """The position at which a run is finished."""
        return Position(epoch=self.num_epochs - 1, step=self.epochs[-1].num_steps)

    def global_step(self, at: Position) -> GlobalStep:
        """Steps done at a position. The end of an epoch and the start of the next are the same step."""
        self._check(at)
        return GlobalStep(sum(e.num_steps for e in self.epochs[: at.epoch]) + at.step)

    def position(self, done: GlobalStep) -> Position:
        """Where `done` steps have led: inside an epoch or at its start; only the run's end is an epoch's end."""
        if not 0 <= done <= self.total_steps:
            raise ContractBroken(
                f"global step {done} of {self.total_steps}",
                where="plan",
                fix="ask for a step between 0 and total_steps",
            )
        ends = accumulate(e.num_steps for e in self.epochs)
        for epoch, end in enumerate(ends):
            if done < end:
                return Position(epoch=epoch, step=done - end + self.epochs[epoch].num_steps)
        return self.end

    def step_fraction(self, at: Position) -> float:
        """Share of the run's steps done, in [0, 1]: for the schedule and for epochs."""
        return self.global_step(at) / self.total_steps

    def cost_fraction(self, at: Position) -> float:
        """Share of the run's cost done, in [0, 1], for the time left; inside an epoch steps count as equal."""
        self._check(at)
        current = self.epochs[at.epoch]
        here = current.cost * (at.step / current.num_steps)
        # fsum rounds once, so the run's end is exactly 1 and no position before an epoch's end is above it.
        return math.fsum((*(e.cost for e in self.epochs[: at.epoch]), here)) / self.total_cost

    def _check(self, at: Position) -> None:
        if at.epoch >= self.num_epochs or at.step > self.epochs[at.epoch].num_steps:
            raise ContractBroken(
                f"epoch {at.epoch} step {at.step} is not in the plan",
                where=f"plan {self.fingerprint}",
                fix=f"it has {self.num_epochs} epochs of {[e.num_steps for e in self.epochs]} steps",
            )
