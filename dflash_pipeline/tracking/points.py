"""Records to points on charts: which names, which values, against which step. No MLflow, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_pipeline.contracts.events import AcceptanceRecord, EpochRecord, Record, SpikeRecord, StepRecord

SPIKE_COUNT = "spike/count"
NONFINITE_COUNT = "loss/nonfinite"
SAMPLES_NAMED = 20


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


def points_of(record: Record, counts: Counts) -> list[Point]:
    """The points of one record; `counts` are those after it. Spikes and alarms have none: the steps hold theirs."""
    match record:
        case StepRecord():
            return step_points(record, counts)
        case EpochRecord():
            return epoch_points(record)
        case AcceptanceRecord():
            return acceptance_points(record)
        case _:
            return []


def step_points(record: StepRecord, counts: Counts) -> list[Point]:
    """`counts` are those after this step."""
    values = {
        "train/loss": record.loss,
        "train/expected_acceptance": record.expected_acceptance,
        "train/gradient_norm": record.gradient_norm,
        "train/learning_rate": record.learning_rate,
        "spike/flag": record.spike,
        SPIKE_COUNT: counts.spikes,
        NONFINITE_COUNT: counts.nonfinite,
        "progress/epoch": record.epoch_fraction,
        "progress/run": record.run_fraction,
        "progress/run_cost": record.run_cost_fraction,
    }
    if record.seconds > 0:
        values |= {
            "train/tokens_per_second": record.real_tokens / record.seconds,
            "train/padded_tokens_per_second": record.padded_tokens / record.seconds,
            "train/data_wait_fraction": record.data_wait_seconds / record.seconds,
        }
    return _points(values, record.global_step)


def epoch_points(record: EpochRecord) -> list[Point]:
    values = {
        "epoch/num_steps": record.num_steps,
        "epoch/padding_efficiency": record.padding_efficiency,
        "epoch/mean_loss": record.mean_loss,
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


def _points(values: dict[str, float], step: int) -> list[Point]:
    return [Point(key=key, value=float(value), step=step) for key, value in values.items() if math.isfinite(value)]
