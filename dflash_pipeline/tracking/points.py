"""Records to points on charts: which names, which values, against which step. No MLflow, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_pipeline.contracts.events import (
    AcceptanceRecord,
    AlarmRecord,
    AttemptRecord,
    EpochRecord,
    SpikeRecord,
    StepRecord,
)
from dflash_pipeline.tracking.stretch import Smoothed, Stretch, imbalance

SPIKE_COUNT = "spike/count"
NONFINITE_COUNT = "loss/nonfinite"
SAMPLES_NAMED = ALARMS_NAMED = 20
RATES = ("useful_tokens_per_second", "supervised_tokens_per_second", "padded_tokens_per_second", "samples_per_second")
MOST_BUCKETS, MOST_RANKS = 16, 8
"""Charts of their own that an epoch makes; the event log has them all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One value of one chart. Always finite: MLflow would store infinity as a very large number."""

    key: str
    value: float
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How many steps of the run, up to and with one step, were spikes, and how many had a loss that is not a number."""

    spikes: int = 0
    nonfinite: int = 0

    def after(self, record: StepRecord) -> Counts:
        return Counts(spikes=self.spikes + record.spike, nonfinite=self.nonfinite + (not math.isfinite(record.loss)))


def step_points(stretch: Stretch, counts: Counts, smoothed: Smoothed) -> list[Point]:
    """Against the last step of a stretch. `counts` and `smoothed` are those after it."""
    last = stretch.last
    values = {
        "train/loss": last.loss,
        "train/expected_acceptance": last.expected_acceptance,
        "train/gradient_norm": last.gradient_norm,
        "train/learning_rate": last.learning_rate,
        "spike/flag": stretch.has_spike,
        SPIKE_COUNT: counts.spikes,
        NONFINITE_COUNT: counts.nonfinite,
        "progress/epoch": last.epoch_fraction,
        "progress/epochs_done": last.epochs_done,
        "progress/run": last.run_fraction,
        "progress/run_cost": last.run_cost_fraction,
        "progress/seconds_left": last.seconds_left,
        "progress/seconds_left_low": last.seconds_left_low,
        "progress/seconds_left_high": last.seconds_left_high,
        "memory/bytes": stretch.memory_bytes,
        "throughput/peak_share": stretch.peak_share(),
        "ranks/imbalance": imbalance(stretch.rank_busy()),
    }
    if len(stretch.steps) > 1:
        values["train/loss_max"] = stretch.loss_max
    values |= {f"time/{part}_share": share for part, share in stretch.shares().items()}
    values |= {f"throughput/{name}": rate for name, rate in zip(RATES, stretch.rates() or (), strict=False)}
    values |= {f"throughput/{name}_smoothed": rate for name, rate in zip(RATES, smoothed.rates() or (), strict=False)}
    if by_rank := stretch.rank_rates():
        slowest = min(range(len(by_rank)), key=by_rank.__getitem__)
        values |= {
            "ranks/slowest": slowest,
            "ranks/slowest_tokens_per_second": by_rank[slowest],
            "ranks/fastest_tokens_per_second": max(by_rank),
        }
    return _points(values, last.global_step)


def epoch_points(record: EpochRecord) -> list[Point]:
    values = {
        "epoch/num_steps": record.num_steps,
        "epoch/padding_efficiency": record.padding_efficiency,
        "epoch/mean_loss": record.mean_loss,
        "epoch/seconds": record.seconds,
    }
    for bucket in record.buckets[:MOST_BUCKETS]:
        values[f"bucket/{bucket.bucket}_seconds_over_expected"] = _quotient(bucket.seconds, bucket.expected_seconds)
    mean = math.fsum(record.rank_busy_seconds) / max(len(record.rank_busy_seconds), 1)
    for rank, busy in enumerate(record.rank_busy_seconds[:MOST_RANKS]):
        values[f"rank/{rank}_busy_over_mean"] = _quotient(busy, mean)
    return _points(values, record.global_step)


def attempt_points(record: AttemptRecord) -> list[Point]:
    values = {
        "tracking/share_of_time": _quotient(record.tracker_seconds, record.seconds),
        "tracking/longest_seconds": record.longest_tracker_seconds,
    }
    return _points(values, record.global_step)


def acceptance_points(record: AcceptanceRecord) -> list[Point]:
    values = {
        "acceptance/mean": record.mean,
        "acceptance/low": record.low,
        "acceptance/high": record.high,
        "acceptance/expected_in_training": record.expected_acceptance,
    }
    return _points(values, record.global_step)


def alarm_points(record: AlarmRecord) -> list[Point]:
    """A mark at the step; what was seen is in the run's tags."""
    return [Point(key=f"alarm/{record.cause.replace(' ', '-')}", value=1.0, step=record.global_step)]


def alarm_list(alarms: Sequence[str]) -> str:
    """All of them for one tag, the newest first; the event log has every one."""
    more = len(alarms) - ALARMS_NAMED
    return ", ".join(reversed(alarms[-ALARMS_NAMED:])) + (f" and {more} more" if more > 0 else "")


def spike_sentence(record: SpikeRecord) -> str:
    """One line for the run's page; the event log has every sample."""
    named = ", ".join(str(sample) for sample in record.sample_ids[:SAMPLES_NAMED])
    more = len(record.sample_ids) - SAMPLES_NAMED
    rise = "slow rise, " if record.rule == "slow rise" else ""
    return (
        f"step {record.global_step} (epoch {record.epoch} step {record.step}, bucket {record.bucket}): "
        f"{rise}loss {record.loss:.4g}, expected {record.expected_loss:.4g}; samples {named}"
        + (f" and {more} more" if more > 0 else "")
    )


def _quotient(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _points(values: dict[str, float], step: int) -> list[Point]:
    return [Point(key=key, value=float(value), step=step) for key, value in values.items() if math.isfinite(value)]
