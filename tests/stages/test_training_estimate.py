"""The training-time estimate is set beside decoding, and a warning comes when they part for certain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_pipeline.evaluation.acceptance import AcceptanceReport, PromptAcceptance, combine_results
from dflash_pipeline.stages.training_estimate import TrainingEstimate, judge_estimate, training_estimate
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.training.event_log import EventLog
from tests.tracking.training_records import step


def report(low: float, mean: float, high: float) -> AcceptanceReport:
    prompt = PromptAcceptance(
        source="", prompt="", prompt_tokens=1, num_tokens=4, histogram=(1, 1), cut_tokens=0, lossless=True
    )
    return replace(combine_results([prompt]), mean=mean, interval=(low, high))


@pytest.mark.parametrize(
    ("low", "high", "expected", "agrees"),
    [
        (2.0, 2.4, 2.2, True),
        (2.0, 2.4, 3.7, True),  # 1.4 drafted at most, of 2.7: more than half
        (2.0, 2.4, 3.9, False),
        (1.0, 2.4, 3.9, False),  # a wide interval that does not reach half
        (1.0, 2.5, 3.9, True),
        (3.0, 3.4, 2.1, True),
        (3.0, 3.4, 1.9, False),  # the other way round
        (1.0, 1.0, 1.15, True),  # nothing is drafted yet
        (1.1, 1.15, 1.0, True),
    ],
)
def test_they_part_when_no_value_of_the_interval_is_within_a_factor_of_two(low, high, expected, agrees):
    agreement = judge_estimate(report(low, (low + high) / 2, high), TrainingEstimate(mean=expected, num_steps=7))
    assert agreement.holds == agrees
    assert f"{expected:.2f} expected in the last 7 steps" in agreement.seen


def test_without_a_log_there_is_nothing_to_compare(tmp_path):
    storage = Storage(root=tmp_path)
    assert training_estimate(storage, "gone") is None
    assert judge_estimate(report(1.0, 1.0, 1.0), None).holds


def test_the_last_steps_count_by_their_blocks_and_as_they_were_done_last(tmp_path):
    log = EventLog(tmp_path / "runs" / "r" / "events.jsonl")
    for number in range(1, 41):
        log.tell(replace(step(number), expected_acceptance=9.0, num_anchors=1))
    # The last two are done again by another attempt: two of forty steps are the last twentieth.
    log.tell(replace(step(39), expected_acceptance=2.0, num_anchors=3))
    log.tell(replace(step(40), expected_acceptance=4.0, num_anchors=1))
    log.end("finished")
    estimate = training_estimate(Storage(root=tmp_path), "r")
    assert estimate == TrainingEstimate(mean=2.5, num_steps=2)
