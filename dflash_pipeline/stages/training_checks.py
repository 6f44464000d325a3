"""Whether a training went as one that is worth exporting goes: by its losses."""

from __future__ import annotations

import math

from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.stages.checks import Finding

MOST_SPIKES = 0.01
"""Share of steps."""
FEWEST_SPIKES = 3
"""A short run has few steps to spare: fewer spikes than these say nothing."""


def judge_losses(trained: TrainedDrafter) -> Finding:
    """The loss ends finite and below where it began, and few steps are spikes.

    A run that began with a champion's weights may end where it began: it need not fall.
    """
    first, last, steps = trained.first_loss, trained.last_loss, trained.steps_done
    spikes = f"{trained.num_spikes:,} of {steps:,} steps are spikes"
    if not math.isfinite(last):
        return Finding(holds=False, seen=f"the last loss is {last}: the weights are of no use; lower the learning rate")
    if trained.warm_start is None and steps > 1 and not last < first:
        return Finding(holds=False, seen=f"the loss went from {first:.4g} to {last:.4g}: nothing was learnt")
    if trained.num_spikes >= FEWEST_SPIKES and trained.num_spikes > MOST_SPIKES * steps:
        return Finding(
            holds=False, seen=f"{spikes}, above {MOST_SPIKES:.0%}: see `dflash spikes`, or the learning rate"
        )
    return Finding(holds=True, seen=f"loss {first:.4g} to {last:.4g}; {spikes}")
