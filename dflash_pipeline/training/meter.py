"""What is added up over an epoch's steps, across attempts: a resumed epoch's mean is over all of its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochMeter:
    """Sums over the steps of the epoch under way that changed the weights. Part of every checkpoint."""

    epoch: int
    num_steps: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0

    def with_step(self, *, loss: float, seconds: float) -> EpochMeter:
        return EpochMeter(
            epoch=self.epoch,
            num_steps=self.num_steps + 1,
            loss_sum=self.loss_sum + loss,
            seconds=self.seconds + seconds,
        )

    @property
    def mean_loss(self) -> float:
        """NaN when no step changed the weights."""
        return self.loss_sum / self.num_steps if self.num_steps else math.nan
