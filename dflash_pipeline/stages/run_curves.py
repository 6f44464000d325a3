"""A run's steps as curves: loss and expected acceptance over steps, cost, tokens and hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.events import AcceptanceRecord, EpochRecord, StepRecord

Floats = npt.NDArray[np.float64]

SMOOTHED_SHARE = 0.02
"""Of all steps: how many of the last ones a point of a curve is the mean of."""
MOST_POINTS = 400
"""Of one curve in a picture or an answer."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curves:
    """One value a step that was done, in order. Losses that are not finite are left out of the means."""

    steps: Floats
    cost: Floats
    """Of the plan, done so far, in token units."""
    tokens: Floats
    """Useful ones so far."""
    hours: Floats
    """Of steps, so far."""
    loss: Floats
    """Smoothed; NaN where none of the last steps has a finite one."""
    expected_acceptance: Floats
    """Smoothed likewise."""
    measured: tuple[AcceptanceRecord, ...]
    """Acceptance by decoding beside the training."""

    def sampled(self) -> dict[str, list[float]]:
        """At most `MOST_POINTS` of each, evenly chosen, the last one among them."""
        chosen = np.unique(np.linspace(0, self.steps.size - 1, min(self.steps.size, MOST_POINTS)).round().astype(int))
        return {
            name: getattr(self, name)[chosen].tolist()
            for name in ("steps", "cost", "tokens", "hours", "loss", "expected_acceptance")
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochFacts:
    """One epoch as it went."""

    epoch: int
    num_steps: int
    padding_efficiency: float
    mean_loss: float
    seconds: float
    tokens_per_second: float
    """Useful ones."""


def curves_of(
    steps: Sequence[StepRecord], measured: Sequence[AcceptanceRecord] = (), *, total_cost: float | None
) -> Curves:
    """`total_cost` is that of the plan; without it cost is a share of the plan."""
    losses = np.array([step.loss for step in steps], dtype=np.float64)
    window = max(1, round(SMOOTHED_SHARE * len(steps)))
    return Curves(
        steps=np.array([step.global_step for step in steps], dtype=np.float64),
        cost=np.array([step.run_cost_fraction for step in steps], dtype=np.float64) * (total_cost or 1.0),
        tokens=np.cumsum([float(step.real_tokens) for step in steps]),
        hours=np.cumsum([step.seconds for step in steps]) / 3600,
        loss=smoothed(losses, window),
        expected_acceptance=smoothed(np.array([step.expected_acceptance for step in steps]), window),
        measured=tuple(measured),
    )


def smoothed(values: Floats, window: int) -> Floats:
    """Mean of the last `window` finite values up to each place; fewer at the beginning, NaN where there are none."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    ends = np.arange(1, values.size + 1)
    starts = np.maximum(0, ends - window)
    number = counts[ends] - counts[starts]
    means: Floats = np.full(values.size, np.nan)
    np.divide(sums[ends] - sums[starts], number, out=means, where=number > 0)
    return means


def epoch_facts(epochs: Sequence[EpochRecord], steps: Sequence[StepRecord]) -> tuple[EpochFacts, ...]:
    """Of every finished epoch, by the steps that hold."""
    found = []
    for epoch in epochs:
        own = [step for step in steps if step.epoch == epoch.epoch]
        seconds = sum(step.seconds for step in own)
        found.append(
            EpochFacts(
                epoch=epoch.epoch,
                num_steps=epoch.num_steps,
                padding_efficiency=epoch.padding_efficiency,
                mean_loss=float(smoothed(np.array([step.loss for step in own]), len(own))[-1]) if own else np.nan,
                seconds=seconds,
                tokens_per_second=sum(step.real_tokens for step in own) / seconds if seconds > 0 else 0.0,
            )
        )
    return tuple(found)
