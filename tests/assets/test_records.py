"""Two runs at once on one storage: each hands on its own records."""

import dagster as dg

from dflash_pipeline.assets.resources import RecordStore, Workbench
from dflash_pipeline.contracts.results import AnswerSet
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import Storage
from tests.conftest import ROOT


def test_a_run_reads_what_it_made_and_not_what_another_made_meanwhile(tmp_path):
    workbench = Workbench(recipe=load_recipe(ROOT / "recipes" / "demo.yaml"), storage=Storage(root=tmp_path))
    resources = {"io_manager": RecordStore(workbench)}
    seen = []

    def answers(name: str) -> AnswerSet:
        return AnswerSet(fingerprint=name, ingestion="i", num_answers=1, num_cut=0, num_empty=0)

    @dg.asset(name="up")
    def another_up() -> AnswerSet:
        return answers("another run")

    @dg.asset
    def up() -> AnswerSet:
        return answers("this run")

    @dg.asset(deps=[up])
    def between() -> AnswerSet:
        assert dg.materialize([another_up], resources=resources).success
        return answers("between")

    @dg.asset
    def down(up: AnswerSet, between: AnswerSet) -> AnswerSet:
        seen.append(up.fingerprint)
        return up

    assert dg.materialize([up, between, down], resources=resources).success
    assert dg.materialize([up, down, between], selection=[down], resources=resources).success
    assert seen == ["this run", "another run"]  # The second run made no `up` of its own: the newest is what it gets.
