"""How far a run is, in words: the terminal's bar and Dagster's log say the same, by the numbers that charts show."""

from __future__ import annotations

import math

from dflash_pipeline.contracts.events import StepRecord


def progress_text(record: StepRecord, *, num_epochs: int) -> str:
    """For example: epoch 1 (of 0 to 5) at 41%, run 23% (24% of its cost), 3 h 10 min left (2 h 50 min to 4 h)."""
    return (
        f"epoch {record.epoch} (of 0 to {num_epochs - 1}) at {percent(record.epoch_fraction)}, "
        f"run {percent(record.run_fraction)} ({percent(record.run_cost_fraction)} of its cost), "
        f"{time_left_text(record)}"
    )


def time_left_text(record: StepRecord) -> str:
    if math.isnan(record.seconds_left):
        return "time left not known yet"
    between = f"{duration(record.seconds_left_low)} to {duration(record.seconds_left_high)}"
    return f"{duration(record.seconds_left)} left ({between})"


def percent(share: float) -> str:
    """Cut, not rounded: 100% is said of what is done, and of nothing else."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f}%"


def duration(seconds: float) -> str:
    """For example 45 s, 12 min, 3 h 10 min, 2 d 5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
