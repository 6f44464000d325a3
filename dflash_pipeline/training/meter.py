"""What is added up over an epoch's steps, across attempts: a resumed epoch's mean is over all of its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest

from dflash_pipeline.contracts.events import BucketSeconds, StepRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketSums:
    """Over the steps of one bucket."""

    num_steps: int = 0
    seconds: float = 0.0
    cost: float = 0.0

    def plus(self, *, seconds: float, cost: float) -> BucketSums:
        return BucketSums(num_steps=self.num_steps + 1, seconds=self.seconds + seconds, cost=self.cost + cost)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochMeter:
    """Sums over the steps of the epoch under way that changed the weights. Part of every checkpoint.

    By bucket and by rank from the first checkpoint on that kept them; of an epoch resumed on fewer ranks, those that
    took part longest stay in the list.
    """

    epoch: int
    num_steps: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    buckets: tuple[BucketSums, ...] = ()
    rank_busy_seconds: tuple[float, ...] = ()

    def with_step(self, record: StepRecord, *, cost: float) -> EpochMeter:
        buckets = [*self.buckets, *[BucketSums()] * (record.bucket + 1 - len(self.buckets))]
        buckets[record.bucket] = buckets[record.bucket].plus(seconds=record.seconds, cost=cost)
        busy = zip_longest(self.rank_busy_seconds, record.rank_busy_seconds, fillvalue=0.0)
        return EpochMeter(
            epoch=self.epoch,
            num_steps=self.num_steps + 1,
            loss_sum=self.loss_sum + record.loss,
            seconds=self.seconds + record.seconds,
            buckets=tuple(buckets),
            rank_busy_seconds=tuple(before + now for before, now in busy),
        )

    @property
    def mean_loss(self) -> float:
        """NaN when no step changed the weights."""
        return self.loss_sum / self.num_steps if self.num_steps else math.nan

    def bucket_seconds(self) -> tuple[BucketSeconds, ...]:
        """Measured seconds of each bucket that had a step, beside those expected if time followed cost."""
        seconds, cost = math.fsum(b.seconds for b in self.buckets), math.fsum(b.cost for b in self.buckets)
        return tuple(
            BucketSeconds(
                bucket=index,
                num_steps=bucket.num_steps,
                seconds=bucket.seconds,
                expected_seconds=seconds * bucket.cost / cost,
            )
            for index, bucket in enumerate(self.buckets)
            if bucket.num_steps
        )
