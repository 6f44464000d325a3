"""Learning rate as a function of the step: linear warm-up, then a cosine that ends with the plan's last step."""

from __future__ import annotations

import math


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
