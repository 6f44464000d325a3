"""The two cases of a loss curve, and variants of them, as `dflash spikes --losses` reads them."""

import json
import math
from pathlib import Path

import pytest

from dflash_pipeline.stages.spikes import spikes_in_file

CASES = Path(__file__).parents[1] / "cases"


def found(tmp_path, name, changes=()):
    losses = json.loads((CASES / name).read_text())["loss"]
    for step, loss in changes:
        losses[step] = loss
    (tmp_path / "losses.json").write_text(json.dumps({"loss": losses}))
    return spikes_in_file(tmp_path / "losses.json")


@pytest.mark.parametrize("nan_at_240", [(), ((240, math.nan),)])
@pytest.mark.parametrize("third", [(), ((262, 2.4),)])
def test_exactly_the_planted_steps_of_the_history(tmp_path, third, nan_at_240):
    facts = found(tmp_path, "tr_history_spikes.json", (*third, *nan_at_240))
    nan = [step for step, _ in nan_at_240]
    assert facts["flagged"] == [*nan, 254, 258, *(step for step, _ in third)]
    event = facts["events"][-1]
    assert (event["kind"], event["severity"]) == ("spike", "alert")
    assert (event["start"], event["end"]) == (254, 262 if third else 258)
    assert (event["peak_step"], event["peak_loss"]) == (258, 6.4)
    assert [e["start"] for e in facts["events"]] == [*nan, 254]


def test_the_quiet_run_has_none(tmp_path):
    assert len(json.loads((CASES / "tr_quiet_run.json").read_text())["loss"]) > 1000
    assert found(tmp_path, "tr_quiet_run.json") == {"flagged": [], "events": []}


@pytest.mark.parametrize("changes", [((240, math.nan),), ((262, 2.4),), ((240, math.nan), (262, 2.4))])
def test_what_is_planted_in_the_quiet_run_is_all_that_is_found(tmp_path, changes):
    facts = found(tmp_path, "tr_quiet_run.json", changes)
    assert facts["flagged"] == [step for step, _ in changes]
