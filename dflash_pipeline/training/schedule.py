"""Learning rate as a function of the step: linear warm-up, then cosine to zero over the plan's total."""

from __future__ import annotations

import math


def learning_rate(step: int, *, total_steps: int, peak: float, warmup_fraction: float) -> float:
    """Rate for the step with index `step` (from 0). Reaches `peak` at the end of warm-up, 0 after the last step."""
    warmup = min(round(total_steps * warmup_fraction), total_steps - 1)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, total_steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * done))
