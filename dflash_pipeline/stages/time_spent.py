"""Where a run's time went, from the records of its steps: the figures of its charts, over all of them together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dflash_pipeline.contracts.events import StepRecord
from dflash_pipeline.contracts.run import TimeSpent
from dflash_pipeline.tracking.stretch import Stretch, imbalance


def time_spent(records: Sequence[StepRecord]) -> TimeSpent | None:
    """Of the steps that count, in order; None for none, or when they took no time that could be measured."""
    if not records:
        return None
    whole = Stretch(steps=tuple(records))
    rates, last = whole.rates(), whole.last
    if rates is None:
        return None
    return TimeSpent(
        epochs_done=last.epochs_done,
        run_fraction=last.run_fraction,
        run_cost_fraction=last.run_cost_fraction,
        hours=whole.seconds / 3600,
        supervised_tokens_per_second=rates[1],
        samples_per_second=rates[3],
        shares={part: share for part, share in whole.shares().items() if math.isfinite(share)},
        imbalance=_known(imbalance(whole.rank_busy())),
        peak_share=_known(whole.peak_share()),
        memory_bytes=whole.memory_bytes,
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
