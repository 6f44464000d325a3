"""What the early answer is measured on, and a run that it ended: found again, told, and gone on with when asked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.events import AcceptanceRecord
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.early import early_settings, early_work, stopped_early
from dflash_pipeline.stages.launch_config import launch_config
from dflash_pipeline.stages.training import finished_drafter
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.store.tokens import TokenStore
from dflash_pipeline.training.event_json import as_event
from tests.conftest import Chain

ON = ("early.enabled=true",)
RULE = (*ON, "early.stop_below=3", "early.stop_after_steps=1")


def recipe_with(chain: Chain, *overrides: str) -> Recipe:
    return load_recipe(chain.recipe_file, overrides)


def work_of(chain: Chain, recipe: Recipe, said: list[str], snapshot: CorpusSnapshot | None = None):
    snapshot = snapshot or load_record(chain.storage.record("tiny", "token_sequences"), CorpusSnapshot)
    return early_work(recipe, chain.storage, snapshot, recipe_drafter(recipe), tell=said.append)


def test_prompts_are_the_validation_sides_first_up_to_the_first_supervised_token(chain):
    said: list[str] = []
    work = work_of(chain, recipe_with(chain, *ON, "early.num_prompts=2"), said)
    snapshot = load_record(chain.storage.record("tiny", "token_sequences"), CorpusSnapshot)
    tokens = TokenStore(chain.storage.snapshots / snapshot.fingerprint, snapshot.shards)
    assert work is not None
    assert len(work.prompts) == 2
    for sample_id, prompt in enumerate(work.prompts, start=snapshot.num_train_samples):
        mask = tokens.supervised_mask(sample_id)
        assert prompt == tuple(tokens.input_ids(sample_id)[: len(prompt)])
        assert not mask[: len(prompt)].any()
        assert mask[len(prompt)]
    assert said == []


def test_without_a_validation_side_they_are_those_of_the_report(chain, tmp_path):
    rows = tmp_path / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"question": f"What is {n} and {n}?"}) + "\n" for n in range(4)))
    snapshot = load_record(chain.storage.record("tiny", "token_sequences"), CorpusSnapshot)
    bare = replace(snapshot, num_train_samples=snapshot.num_samples, num_validation_samples=0)
    said: list[str] = []
    work = work_of(chain, recipe_with(chain, *ON, "early.num_prompts=3", f"evaluation.prompts={rows}"), said, bare)
    assert work is not None
    assert len(work.prompts) == 3
    assert work_of(chain, recipe_with(chain, *ON), said, bare) is None
    assert said == ["no early acceptance: nothing is held out to measure on, and evaluation.prompts names no file"]


def test_a_target_too_large_for_a_cpu_is_not_measured_there_and_that_is_said(chain):
    said: list[str] = []
    assert work_of(chain, recipe_with(chain, *ON, "early.largest_cpu_target=1000"), said) is None
    assert len(said) == 1
    assert "too many for a CPU; early.device cuda" in said[0]
    work = work_of(chain, recipe_with(chain, *ON, "early.largest_cpu_target=1000", "early.device=cuda"), said)
    assert work is not None


def test_turned_off_nothing_is_measured_and_nothing_said(chain):
    said: list[str] = []
    assert work_of(chain, recipe_with(chain), said) is None
    assert early_settings(recipe_with(chain)) is None
    assert said == []


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("early.stop_below=2",), "stop_below and stop_after_steps go together"),
        (("early.stop_after_steps=2",), "stop_below and stop_after_steps go together"),
        ((*RULE, "early.stop_above=2"), "stop_below must lie under stop_above"),
        ((*RULE, "early.num_prompts=1"), "num_prompts of at least 2"),
        (("early.enabled=false", "early.stop_above=2"), "need measurements"),
    ],
)
def test_rules_that_mean_nothing_are_refused(chain, overrides, sentence):
    with pytest.raises(Refused, match=sentence):
        recipe_with(chain, *overrides)


def test_it_is_no_part_of_a_runs_identity(chain):
    snapshot = load_record(chain.storage.record("tiny", "token_sequences"), CorpusSnapshot)
    plan = load_record(chain.storage.record("tiny", "run_plan"), RunPlan)
    runs = {
        launch_config(recipe_with(chain, *overrides), chain.storage, snapshot, plan, fresh=False).run
        for overrides in ((), ON, RULE)
    }
    assert runs == {chain.facts["run"]}


@pytest.fixture
def ended(chain, tmp_path) -> Chain:
    """The chain's run as it would be, had a measurement ended it at its last step but for one thing: it is whole."""
    copy = chain.copy(tmp_path / "storage")
    run_dir = copy.storage.runs / chain.facts["run"]
    record = load_record(run_dir / "run.json", RunRecord)
    stopped = replace(record.attempts[-1], status="stopped")
    save_record(run_dir / "run.json", record.with_attempt(stopped))
    told = AcceptanceRecord(
        global_step=record.total_steps,
        mean=1.5,
        low=1.2,
        high=1.9,
        num_prompts=8,
        expected_acceptance=2.5,
        seconds=1.0,
    )
    with (run_dir / "events.jsonl").open("a") as file:
        file.write(json.dumps({"unix_seconds": 0.0, **as_event(told)}) + "\n")
    return copy


def found(ended: Chain, *overrides: str):
    snapshot = load_record(ended.storage.record("tiny", "token_sequences"), CorpusSnapshot)
    plan = load_record(ended.storage.record("tiny", "run_plan"), RunPlan)
    return finished_drafter(recipe_with(ended, *overrides), ended.storage, snapshot, plan, fresh=False)


def test_a_run_that_was_stopped_early_is_not_taken_up_again_under_the_same_rule(ended):
    reused = found(ended, *RULE)
    assert reused is not None
    assert reused.stopped_early == (
        f"acceptance length 1.50 (1.20 to 1.90) on 8 prompts after step {reused.total_steps} "
        "is below early.stop_below 3"
    )
    assert found(ended, *ON) is None
    assert found(ended, *ON, "early.stop_below=1.8", "early.stop_after_steps=1") is None
    assert found(ended) is None


def test_the_newest_measurement_counts(ended):
    run_dir = ended.storage.runs / ended.facts["run"]
    settings = early_settings(recipe_with(ended, *RULE))
    assert stopped_early(run_dir, settings) is not None
    with (run_dir / "events.jsonl").open("a") as file:
        better = AcceptanceRecord(
            global_step=99, mean=3.5, low=3.1, high=3.9, num_prompts=8, expected_acceptance=3.5, seconds=1.0
        )
        file.write(json.dumps({"unix_seconds": 0.0, **as_event(better)}) + "\n")
    assert stopped_early(run_dir, settings) is None
    assert stopped_early(run_dir, None) is None
