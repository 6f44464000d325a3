"""Steps that are told together: so few that a chart stays usable, so many that nothing it should show is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from dflash_pipeline.contracts.events import StepRecord

SMOOTHING_SECONDS = 60.0
"""Of training: a step so long ago counts 1 / e in what is called smoothed."""

Rates = tuple[float, float, float, float]
"""Useful, supervised and padded tokens, and samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Smoothed:
    """Counts and seconds, each faded alike, so that their quotient is a rate over the last minute or so."""

    counts: Rates = (0.0, 0.0, 0.0, 0.0)
    seconds: float = 0.0

    def after(self, record: StepRecord) -> Smoothed:
        kept = math.exp(-record.seconds / SMOOTHING_SECONDS)
        useful, supervised, padded, samples = (kept * before for before in self.counts)
        return Smoothed(
            counts=(
                useful + record.real_tokens,
                supervised + record.supervised_tokens,
                padded + record.padded_tokens,
                samples + record.num_samples,
            ),
            seconds=kept * self.seconds + record.seconds,
        )

    def rates(self) -> Rates | None:
        """A second; None while no time has passed."""
        if not self.seconds > 0:
            return None
        useful, supervised, padded, samples = (count / self.seconds for count in self.counts)
        return useful, supervised, padded, samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """At least one step, in order."""

    steps: tuple[StepRecord, ...]

    @property
    def last(self) -> StepRecord:
        return self.steps[-1]

    @property
    def has_spike(self) -> bool:
        return any(step.spike for step in self.steps)

    @property
    def seconds(self) -> float:
        return math.fsum(step.seconds for step in self.steps)

    @property
    def loss_max(self) -> float:
        """Of the losses that are numbers; NaN when there is none."""
        return max((step.loss for step in self.steps if math.isfinite(step.loss)), default=math.nan)

    @property
    def memory_bytes(self) -> int:
        return max(step.memory_bytes for step in self.steps)

    def rates(self) -> Rates | None:
        """A second, over all steps; None when they took no time that could be measured."""
        seconds = self.seconds
        if not seconds > 0:
            return None
        return (
            sum(step.real_tokens for step in self.steps) / seconds,
            sum(step.supervised_tokens for step in self.steps) / seconds,
            sum(step.padded_tokens for step in self.steps) / seconds,
            sum(step.num_samples for step in self.steps) / seconds,
        )

    def shares(self) -> dict[str, float]:
        """Of the stretch's seconds, by what they went into; they add up to less than 1."""
        parts = {
            "data_wait": [step.data_wait_seconds for step in self.steps],
            "target": [step.target_seconds for step in self.steps],
            "drafter": [step.drafter_seconds for step in self.steps],
            "backward": [step.backward_seconds for step in self.steps],
            "communication": [step.communication_seconds for step in self.steps],
            "optimizer": [step.optimizer_seconds for step in self.steps],
        }
        return {name: math.fsum(values) / self.seconds for name, values in parts.items()} if self.seconds > 0 else {}

    def peak_share(self) -> float:
        """Weighted by time; NaN where it is not known."""
        weighted = math.fsum(step.peak_share * step.seconds for step in self.steps)
        return weighted / self.seconds if self.seconds > 0 else math.nan

    def rank_busy(self) -> tuple[float, ...]:
        return added_by_rank([step.rank_busy_seconds for step in self.steps])

    def rank_rates(self) -> tuple[float, ...]:
        """Useful tokens in a second of its own work, by rank: a slow rank has few, whatever it was given."""
        tokens = added_by_rank([step.rank_real_tokens for step in self.steps])
        return tuple(count / busy for count, busy in zip(tokens, self.rank_busy(), strict=False) if busy > 0)


def added_by_rank(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(math.fsum(values) for values in zip_longest(*rows, fillvalue=0.0))


def imbalance(busy: Sequence[float]) -> float:
    """The busiest rank's time over the mean of all; 1 is even, NaN without any work."""
    total = math.fsum(busy)
    return max(busy) * len(busy) / total if total > 0 else math.nan
