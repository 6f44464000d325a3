"""How far the loss of a run is above the best it had, over all buckets: what a divergence is told by. Pure.

    u = ln(max(loss, 1e-8));  e_b = e_b + (u - e_b) / N over the steps of bucket b, from their plain mean on
    best_b = the least e_b so far;  above_best = mean over the last N steps of e_b - best_b

Each bucket has a best of its own, since buckets differ in loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from dflash_pipeline.contracts.events import StepRecord

SMOOTHED_STEPS = 16
"""N above. A single spike of seven times the loss raises e by 0.12; a level of 1.7 times reaches ln 1.5 in 26 steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketLevel:
    """One bucket's smoothed log loss."""

    count: int = 0
    smooth: float = 0.0
    best: float = math.inf
    """Infinite before there are `SMOOTHED_STEPS` values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossLevel:
    """All buckets' levels, and how the last steps stood above their best."""

    buckets: tuple[BucketLevel, ...] = ()
    last: tuple[float, ...] = field(default=())
    """Of steps whose bucket has a best: e_b - best_b, as many as are looked back on."""

    @property
    def above_best(self) -> float:
        """0 before there are enough steps."""
        recent = self.last[-SMOOTHED_STEPS:]
        return sum(recent) / len(recent) if len(recent) == SMOOTHED_STEPS else 0.0

    def steps_above(self, limit: float) -> int:
        """The last steps in a row, 64 at most, that are that far above their best."""
        above = 0
        for value in reversed(self.last):
            if value <= limit:
                break
            above += 1
        return above


_KEPT = 4 * SMOOTHED_STEPS


def with_loss(level: LossLevel, record: StepRecord) -> LossLevel:
    """The level after one more step; one whose loss is not finite changes nothing."""
    if not math.isfinite(record.loss):
        return level
    buckets = level.buckets + (BucketLevel(),) * (record.bucket + 1 - len(level.buckets))
    after = _after(buckets[record.bucket], math.log(max(record.loss, 1e-8)))
    last = level.last if math.isinf(after.best) else (*level.last, after.smooth - after.best)[-_KEPT:]
    return replace(level, buckets=(*buckets[: record.bucket], after, *buckets[record.bucket + 1 :]), last=last)


def _after(bucket: BucketLevel, value: float) -> BucketLevel:
    count = bucket.count + 1
    smooth = bucket.smooth + (value - bucket.smooth) / min(count, SMOOTHED_STEPS)
    return BucketLevel(
        count=count, smooth=smooth, best=min(bucket.best, smooth) if count >= SMOOTHED_STEPS else math.inf
    )
