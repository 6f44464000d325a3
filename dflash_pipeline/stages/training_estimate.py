"""What training expected of acceptance at its end, beside what decoding found.

The estimate counts, over the blocks of the last steps, the leading slots that are right, plus one. Decoding goes on
from its own text, on prompts that were not trained on, and its rounds start where the last one failed: it may find less
or more. Far less is a fault of the way from training to decoding, as a label shift, a wrong tap or position, or another
chat template: each of these trained to a loss near zero and lost more than half of the drafted tokens. Far more is an
estimate that does not measure what it says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_pipeline.contracts.events import StepRecord
from dflash_pipeline.evaluation.acceptance import AcceptanceReport
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.training.alarms import FAR_BELOW, LEAST_DRAFTED
from dflash_pipeline.training.event_log import last_attempt_records

LAST_SHARE = 0.05
"""Of the steps done: near the end the learning rate is small, and the weights are almost those that decode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEstimate:
    """Expected acceptance over the last steps, weighted by their blocks."""

    mean: float
    num_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Whether estimate and decoding are as near as they can be expected to be."""

    holds: bool
    seen: str


def training_estimate(storage: Storage, run: str) -> TrainingEstimate | None:
    """Of a run's last steps; None when its event log is gone, or no step had a block."""
    records = last_attempt_records(storage.runs / run / "events.jsonl")
    steps = [record for record in records if isinstance(record, StepRecord)]
    last = [step for step in steps[-max(1, round(LAST_SHARE * len(steps))) :] if step.num_anchors]
    if not last:
        return None
    mean = np.average([step.expected_acceptance for step in last], weights=[step.num_anchors for step in last])
    return TrainingEstimate(mean=float(mean), num_steps=len(last))


def judge_estimate(report: AcceptanceReport, estimate: TrainingEstimate | None) -> Agreement:
    """They part when the whole interval of drafted tokens a round is under half of the estimate's, or over its double.

    Where both are under 0.2 drafted tokens a round there is nothing to compare yet.
    """
    low, high = (end - 1 for end in report.interval)
    if estimate is None:
        return Agreement(holds=True, seen="the run's event log holds no estimate to compare with")
    expected = estimate.mean - 1
    seen = (
        f"acceptance length {report.mean:.2f} by decoding (95 %: {report.interval[0]:.2f} to "
        f"{report.interval[1]:.2f}), {estimate.mean:.2f} expected in the last {estimate.num_steps} steps of training"
    )
    if expected >= LEAST_DRAFTED and high < FAR_BELOW * expected:
        why = "decoding accepts far less: see that prompts use the template of the training text, and that the answers"
        return Agreement(holds=False, seen=f"{seen}; {why} trained on are the target's own")
    if low >= LEAST_DRAFTED and expected < FAR_BELOW * low:
        return Agreement(holds=False, seen=f"{seen}; decoding accepts far more than training expected")
    return Agreement(holds=True, seen=seen)
