"""How long training would take: by step times measured on this storage, or by the run that this project grew from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.forecast import TimeModel
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.planning.diversity import batch_costs
from dflash_pipeline.recipe import Recipe

HISTORY = (25_100.0, 28_500.0)
"""Useful tokens a second of an 8B target's drafter on 8 GPUs of 96 GB: of bucketed and of sorted micro-batches."""
HISTORY_RANKS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Hours:
    """Hours of training, all epochs, without evaluation; None where nothing says how fast this machine is."""

    low: float | None
    high: float | None
    origin: Literal["measured", "history", "unknown"]
    says: str


def epoch_seconds(manifest: EpochManifest, samples: SampleLengths, time: TimeModel, *, num_ranks: int) -> float:
    """Of one epoch: each step takes as long as the slowest of its ranks."""
    seconds = batch_costs(manifest, samples, time.cost) * time.seconds_per_cost + time.seconds_per_micro_batch
    of_ranks = seconds.reshape(manifest.num_steps, -1, num_ranks).sum(axis=1)
    return float(np.max(of_ranks, axis=1).sum())


def measured_hours(seconds: float, time: TimeModel, run: str) -> Hours:
    hours = seconds / 3600
    return Hours(
        low=hours,
        high=hours,
        origin="measured",
        says=f"by {time.num_steps:,} measured steps of run {run}, which the model meets to "
        f"{time.relative_error:.0%} in the median",
    )


def assumed_hours(plan: RunPlan, recipe: Recipe) -> Hours:
    """By the history's tokens a second, in proportion to the ranks; on a CPU nothing is assumed."""
    if recipe.training.device == "cpu":
        says = "no run on this storage has measured steps of this drafter, and the history's speed is that of GPUs"
        return Hours(low=None, high=None, origin="unknown", says=says)
    share = recipe.training.num_ranks / HISTORY_RANKS
    tokens = sum(epoch.real_tokens for epoch in plan.epochs)
    high, low = (tokens / (speed * share) / 3600 for speed in HISTORY)
    return Hours(
        low=low,
        high=high,
        origin="history",
        says=f"by the history's {HISTORY[0]:,.0f} to {HISTORY[1]:,.0f} tokens/s on {HISTORY_RANKS} GPUs"
        + ("" if share == 1 else f", times {share:g}")
        + ", until a run on this storage has measured step times",
    )
