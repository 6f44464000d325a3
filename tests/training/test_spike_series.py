"""Small trainings with a planted cause (series made by `bench/spike_trainings.py`), and what the detector tells."""

import json
from pathlib import Path

import pytest

from dflash_pipeline.stages.spikes import spikes_in_file

SERIES = Path(__file__).parent / "series"


def found(cause):
    planted = json.loads((SERIES / f"{cause}.json").read_text())["planted"]
    return planted, spikes_in_file(SERIES / f"{cause}.json")


def test_a_quiet_training_has_no_event():
    assert found("quiet") == ([], {"flagged": [], "events": []})


@pytest.mark.parametrize("cause", ["learning_rate", "shuffled_labels", "padding_in_loss"])
def test_one_bad_step_is_told_in_that_step(cause):
    planted, facts = found(cause)
    assert len(planted) == 1
    [event] = facts["events"]
    assert (event["kind"], event["severity"], event["cause"]) == ("spike", "alert", None)
    assert event["start"] == event["peak_step"] == planted[0]
    assert event["end"] - event["start"] < 4


def test_a_repeated_batch_is_a_dip_and_no_spike():
    """What is known by heart has a low loss; the return to the others is not above what was usual before."""
    losses = json.loads((SERIES / "repeated_batch.json").read_text())["loss"]
    assert min(losses) < losses[80] / 2
    assert found("repeated_batch")[1]["events"] == []


def test_bad_conversations_in_static_batches_are_seen_in_every_epoch_and_named_data():
    """The cause of the history's own spikes: sorted batches, the same in each of five epochs."""
    planted, facts = found("static")
    series = json.loads((SERIES / "static.json").read_text())
    assert facts["flagged"] == planted
    assert [series["epoch"][step] for step in planted] == [0, 1, 2, 3, 4]
    bad = set(series["sample_ids"][planted[0]])
    assert [event["cause"] for event in facts["events"]] == ["data"] * len(facts["events"])
    assert [set(event["shared_sample_ids"]) for event in facts["events"]] == [bad] * len(facts["events"])
