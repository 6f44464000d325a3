"""How far a run is, readable from any thread at any moment, from before the first manifest to after the last step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import Position, RunPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One consistent reading: its numerators and denominators were true together. Replaced whole, never changed."""

    epoch: int | None = None
    epoch_steps_done: int = 0
    epoch_steps: int = 0
    run_steps_done: int = 0
    run_steps: int = 0
    run_cost_done: float = 0.0
    run_cost: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.epoch_steps_done <= self.epoch_steps and 0 <= self.run_steps_done <= self.run_steps):
            raise ContractBroken(
                f"steps {self.epoch_steps_done} of {self.epoch_steps}, run {self.run_steps_done} of {self.run_steps}",
                where=f"progress in epoch {self.epoch}",
                fix="advance only within the manifest in use",
            )

    @property
    def state(self) -> Literal["not started", "running", "finished"]:
        if self.epoch is None:
            return "not started"
        return "finished" if self.run_steps_done == self.run_steps else "running"

    @property
    def epoch_fraction(self) -> float:
        """Share of this epoch's steps done, in [0, 1]; 0 when not started."""
        return self.epoch_steps_done / self.epoch_steps if self.epoch_steps else 0.0

    @property
    def run_fraction(self) -> float:
        """Share of the run's steps done, in [0, 1]; 0 when not started."""
        return self.run_steps_done / self.run_steps if self.run_steps else 0.0

    @property
    def run_cost_fraction(self) -> float:
        """Share of the run's cost done, in [0, 1]: what the time left follows; 0 when not started."""
        return min(1.0, self.run_cost_done / self.run_cost) if self.run_cost else 0.0


class ProgressBoard:
    """Holds the current `Progress`. One thread advances it; any thread reads it, without a lock.

    It can be read from construction on: until `open_epoch` it says "not started". A reading is one attribute load of a
    frozen record, so a reader sees a numerator only with the denominator it belongs to.
    """

    __slots__ = ("_cost_done", "_current")

    def __init__(self) -> None:
        self._current = Progress()
        self._cost_done: tuple[float, ...] = ()

    def read(self) -> Progress:
        return self._current

    def open_epoch(self, plan: RunPlan, manifest: EpochManifest, at: Position) -> Progress:
        """Take up `manifest`, of which `at.step` steps are already done."""
        planned = plan.epochs[at.epoch].num_steps if at.epoch < plan.num_epochs else 0
        if at.epoch != manifest.epoch or planned != manifest.num_steps:
            raise ContractBroken(
                f"position in epoch {at.epoch}, manifest of epoch {manifest.epoch} with {manifest.num_steps} steps, "
                f"planned {planned}",
                where="progress",
                fix="open the manifest that the plan sealed for the position's epoch",
            )
        run_steps_done = plan.global_step(at)
        self._cost_done = _cost_done(plan, manifest)
        self._current = Progress(
            epoch=manifest.epoch,
            epoch_steps_done=at.step,
            epoch_steps=manifest.num_steps,
            run_steps_done=run_steps_done,
            run_steps=plan.total_steps,
            run_cost_done=self._cost_done[at.step],
            run_cost=plan.total_cost,
        )
        return self._current

    def advance(self) -> Progress:
        """One more step of the open epoch is done."""
        now = self._current
        if now.epoch is None or now.epoch_steps_done >= now.epoch_steps:
            raise ContractBroken(
                f"a step after {now.epoch_steps_done} of {now.epoch_steps}",
                where=f"progress in epoch {now.epoch}",
                fix="open the next epoch's manifest first",
            )
        self._current = Progress(
            epoch=now.epoch,
            epoch_steps_done=now.epoch_steps_done + 1,
            epoch_steps=now.epoch_steps,
            run_steps_done=now.run_steps_done + 1,
            run_steps=now.run_steps,
            run_cost_done=self._cost_done[now.epoch_steps_done + 1],
            run_cost=now.run_cost,
        )
        return self._current


def _cost_done(plan: RunPlan, manifest: EpochManifest) -> tuple[float, ...]:
    """The run's cost after 0, 1, 2 … steps of the manifest; after its last exactly what the plan says."""
    costs = [e.cost for e in plan.epochs]
    before, after = math.fsum(costs[: manifest.epoch]), math.fsum(costs[: manifest.epoch + 1])
    reached = np.minimum(before + np.cumsum(manifest.step_costs), after)
    return (before, *reached[:-1].tolist(), after)
