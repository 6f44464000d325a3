"""Runs side by side: what differs, curves by plain sums, and whom a run is held against."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.promotion import Contender, PromotionDecision
from dflash_pipeline.stages.comparison import (
    acceptance_difference,
    against,
    compare_runs,
    compare_with_champion,
    comparison_facts,
)
from dflash_pipeline.stages.comparison_page import acceptance_sentences, comparison_page
from dflash_pipeline.stages.run_curves import curves_of, smoothed
from dflash_pipeline.stages.run_settings import differing, flat
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.promotions import append_decision
from dflash_pipeline.training.event_log import EventLog
from tests.stages.compared_runs import launch_of, write_report, write_run
from tests.tracking.training_records import step
from tests.training.test_event_log import STEP
from tests.training.toy_run import plan_of


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    return launch_of(tmp_path_factory.mktemp("launch") / "storage")


@pytest.fixture
def storage(launch, tmp_path):
    """Two runs of one plan: b has another learning rate, more ranks and falls lower."""
    made = Storage(root=tmp_path / "storage")
    made.root.mkdir()
    made.plans.symlink_to(os.path.dirname(launch.plan_dir))  # noqa: PTH120
    write_run(made, "a", launch)
    write_run(made, "b", replace(launch, settings=replace(launch.settings, learning_rate=0.5)), loss=1.5, num_ranks=4)
    return made


def test_what_differs_is_all_that_differs(storage):
    comparison = compare_runs(["a", "b"], storage)
    assert comparison.differences == {
        "settings.learning_rate": {"a": "0.005", "b": "0.5"},
        "num_ranks": {"a": "2", "b": "4"},
        "git.revision": {"a": "a", "b": "b"},
    }
    settings = comparison.runs[0].settings
    assert settings["data.snapshot"] == "toy"
    assert settings["batching.strategy"] == "shuffle"
    assert settings["settings.objective.decay"] == "2.0"
    assert settings["version.torch"] == "2.13"
    assert not [name for name in settings if "dir" in name]


def test_what_a_run_no_longer_tells_differs_from_what_another_does(storage):
    (storage.runs / "b" / "launch.json").unlink()
    differences = compare_runs(["a", "b"], storage).differences
    assert differences["settings.learning_rate"] == {"a": "0.005", "b": None}


def test_facts_are_those_of_the_steps(storage, launch):
    plan = plan_of(launch)
    facts = comparison_facts(compare_runs(["a", "b"], storage))
    first, second = facts["runs"]
    assert first["steps"] == plan.total_steps
    assert first["tokens"] == 900 * plan.total_steps
    assert first["hours"] == pytest.approx(0.5 * plan.total_steps / 3600)
    assert first["tokens_per_second"] == pytest.approx(1800)
    assert first["cost"] == pytest.approx(sum(epoch.cost for epoch in plan.epochs))
    assert [epoch["tokens_per_second"] for epoch in first["epochs"]] == pytest.approx([1800, 1800])
    assert [event["peak_step"] for event in first["events"]] == [5]
    assert second["loss"] < first["loss"]
    assert (first["status"], first["recipe"]) == ("finished", "toy")
    assert first["curves"]["steps"][0] == 1
    assert first["curves"]["steps"][-1] == plan.total_steps


def test_acceptance_is_compared_prompt_by_prompt(storage):
    write_report(storage, "a", [1, 2, 3, 2])
    write_report(storage, "b", [2, 3, 4, 3])
    before, after = compare_runs(["a", "b"], storage).runs
    found = acceptance_difference(before, after)
    assert (found["mean"], found["interval"]) == (1.0, (1.0, 1.0))
    [sentence] = acceptance_sentences([before, after])
    assert "b less that of a, prompt by prompt: +1.000" in sentence
    assert "no certain difference" not in sentence

    write_report(storage, "b", [2, 3, 4, 3], prompts="other")
    before, after = compare_runs(["a", "b"], storage).runs
    assert acceptance_difference(before, after) is None
    assert after.acceptance.mean == 3.0


def test_a_report_of_other_days_is_passed_over(storage):
    write_report(storage, "a", [1, 2])
    (storage.run_record("dagster-a", "acceptance_report")).write_text('{"run": "a"}')
    assert compare_runs(["a"], storage).runs[0].acceptance is None


def test_a_run_is_held_against_the_last_champion_that_was_another(storage, launch):
    assert against(storage, "toy", "b") == "a"
    assert against(storage, "other", "b") is None
    write_run(storage, "c", launch)
    os.utime(storage.runs / "c" / "events.jsonl", (1, 1))
    assert against(storage, "toy", "b") == "a", "the newest"
    for run in ("c", "b"):
        append_decision(storage.promotions, promoted(run))
    assert against(storage, "toy", "b") == "c"
    assert against(storage, "toy", "a") == "b"
    assert [run.name for run in compare_with_champion(storage, "toy", "b").runs] == ["c", "b"]


def test_a_run_with_nothing_beside_it_stands_alone(storage):
    assert [run.name for run in compare_with_champion(storage, "other", "b").runs] == ["b"]
    (storage.runs / "a" / "events.jsonl").write_text("not an event\n")
    assert [run.name for run in compare_with_champion(storage, "toy", "b").runs] == ["b"]


def test_runs_that_cannot_be_compared(storage):
    EventLog(storage.runs / "empty" / "events.jsonl").start({})
    for names in (["a", "nosuch"], ["a", "../a"], ["a", "empty"], [str(n) for n in range(9)]):
        with pytest.raises(Refused):
            compare_runs(names, storage)


def test_the_page_holds_its_pictures_and_foreign_text_as_text(storage):
    log = EventLog(storage.runs / "<b>x" / "events.jsonl")
    log.tell(replace(STEP, loss=math.nan))
    page = comparison_page(compare_runs(["a", "<b>x"], storage))
    assert "<b>" not in page
    assert page.count("data:image/png;base64,") == 6
    assert "src='http" not in page


@given(st.lists(st.floats(allow_infinity=True, allow_nan=True), max_size=30), st.integers(1, 8))
def test_smoothed_against_a_plain_loop(values, window):
    values = [value for value in values if not math.isfinite(value) or abs(value) < 1e6]
    expected = []
    for place in range(len(values)):
        last = [v for v in values[max(0, place + 1 - window) : place + 1] if math.isfinite(v)]
        expected.append(sum(last) / len(last) if last else math.nan)
    np.testing.assert_allclose(smoothed(np.array(values, dtype=float), window), expected, rtol=1e-6, atol=1e-6)


def test_long_curves_are_thinned_to_their_first_and_last_values():
    curves = curves_of([step(number) for number in range(1, 5001)], total_cost=None)
    sampled = curves.sampled()
    assert len(sampled["steps"]) == 400
    assert (sampled["steps"][0], sampled["steps"][-1]) == (1, 5000)
    assert curves.loss[-1] == pytest.approx(np.mean([3.0 / n for n in range(4901, 5001)]))


def test_settings_are_flat_text():
    assert flat({"a": {"b": [1, 2], "c": {"d": None}}, "e": True}) == {"a.b": "1, 2", "a.c.d": "None", "e": "True"}
    assert differing({"x": {"a": "1", "b": "2"}, "y": {"a": "1", "b": "3"}}) == {"b": {"x": "2", "y": "3"}}


def promoted(run):
    contender = Contender(run=run, export=run, weights=run, target="t", snapshot="s", plan="p", mlflow_run_id=None)
    return PromotionDecision(
        recipe="toy",
        action="promoted",
        reason="better",
        contender=contender,
        champion=contender,
        by_hand=False,
        standing=None,
        difference=None,
        basis=run,
        unix_seconds=1.0,
    )
