"""Learning rate as a function of the step: linear warm-up, then a cosine that ends with the plan's last step."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from dflash_pipeline.training.settings import TrainingSettings


def learning_rate(step: int, *, total_steps: int, peak: float, warmup_fraction: float, end_fraction: float) -> float:
    """Rate for the step with index `step`, from 0 to `total_steps` - 1.

    It reaches `peak` with the step after warm-up and `peak * end_fraction`, exactly, with the last step. A run that has
    no step after warm-up's end ends at the peak.
    """
    last = total_steps - 1
    warmup = min(round(total_steps * warmup_fraction), last)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if warmup == last:
        return peak
    done = (step - warmup) / (last - warmup)
    if done == 1.0:
        return peak * end_fraction
    return peak * (end_fraction + (1 - end_fraction) * 0.5 * (1 + math.cos(math.pi * done)))


def set_learning_rate(optimizer: Optimizer, settings: TrainingSettings, done: int, *, total_steps: int) -> None:
    """The rate of the step after `done` ones, for all weights."""
    rate = learning_rate(
        done,
        total_steps=total_steps,
        peak=settings.learning_rate,
        warmup_fraction=settings.warmup_fraction,
        end_fraction=settings.end_fraction,
    )
    for group in optimizer.param_groups:
        group["lr"] = rate
