"""The early answer, its pure part: when acceptance is measured beside the training, and what of it ends a run.

A measurement is skipped while the one before it runs, so its steps are those at which one *may* begin. Without
`every_steps` they lie ever further apart: a run that learns nothing shows it in its first minutes, and a long run is
not measured more often than its curve has use for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.events import AcceptanceRecord
from dflash_pipeline.model.config import DrafterConfig

FIRST_STEP = 8
"""Before it a drafter is as good as untrained, at any learning rate with a warm-up."""
GROWTH = 1.5
"""From one measurement to the next: each sees a training half as long again."""
FEWEST = 20
"""Measurements of a whole run, where there is time for them."""
AROUND_STEPS = 5
"""On either side of a step, over which the training estimate is averaged: a step's own is noisy, and it grows."""

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRule:
    """When a measured acceptance length ends the run. Without limits: never."""

    below: float | None = None
    """Ends a run whose interval still lies wholly below this after `after_steps`."""
    after_steps: int = 1
    above: float | None = None
    """Ends a run whose interval lies wholly above this: good enough."""

    def __post_init__(self) -> None:
        if self.after_steps < 1 or (self.below is not None and self.above is not None and self.below >= self.above):
            raise ContractBroken(
                f"stop below {self.below} after {self.after_steps} steps, or above {self.above}",
                where="early",
                fix="set stop_below under stop_above, and stop_after_steps to at least 1",
            )

    def reason(self, record: AcceptanceRecord) -> str | None:
        """One sentence, if this measurement ends the run."""
        seen = (
            f"acceptance length {record.mean:.2f} ({record.low:.2f} to {record.high:.2f}) on {record.num_prompts} "
            f"prompts after step {record.global_step:,} is"
        )
        if self.below is not None and record.global_step >= self.after_steps and record.high < self.below:
            return f"{seen} below early.stop_below {self.below:g}"
        if self.above is not None and record.low > self.above:
            return f"{seen} above early.stop_above {self.above:g}"
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlySettings:
    """What the ranks need to know of it. Changes no weight, and is no part of a run's identity."""

    every_steps: int | None = None
    """None: ever further apart."""
    stop: StopRule = StopRule()
    end_wait_seconds: float = 5.0
    """How long the end of the training waits for the measurement under way, and for one of its last weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyWork:
    """What the measuring process is given, as one JSON file."""

    target_dir: str
    drafter: DrafterConfig
    prompts: tuple[tuple[int, ...], ...]
    """Token ids."""
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    device: Device
    gpu_memory_gib: float | None
    threads: int

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts) or self.max_new_tokens < 2:
            raise ContractBroken(
                f"{len(self.prompts)} prompts, answers of {self.max_new_tokens} tokens",
                where="early",
                fix="give prompts that each have a token, and room for a round of drafting",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Acceptance length of the weights after a step."""

    global_step: int
    mean: float
    low: float
    high: float
    num_prompts: int
    """Those with a whole round of drafting."""
    seconds: float

    def record(self, *, expected_acceptance: float) -> AcceptanceRecord:
        return AcceptanceRecord(
            global_step=self.global_step,
            mean=self.mean,
            low=self.low,
            high=self.high,
            num_prompts=self.num_prompts,
            expected_acceptance=expected_acceptance,
            seconds=self.seconds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmeasured:
    """Weights that gave no figure."""

    global_step: int
    why: str


Answer = Measured | Unmeasured


def next_due(after: int, *, every_steps: int | None, total_steps: int) -> int:
    """The first step after step `after` (0: none was done) at which a measurement may begin."""
    if every_steps is not None:
        return (after // every_steps + 1) * every_steps
    widest = max(1, total_steps // FEWEST)
    return max(min(FIRST_STEP, widest), min(math.ceil(after * GROWTH), after + widest))


def expected_around(step: int, estimates: Mapping[int, float]) -> float:
    """Mean of the finite training estimates (by step) within `AROUND_STEPS` of a step; NaN when there is none."""
    near = [
        value
        for other in range(step - AROUND_STEPS, step + AROUND_STEPS + 1)
        if math.isfinite(value := estimates.get(other, math.nan))
    ]
    return math.fsum(near) / len(near) if near else math.nan
