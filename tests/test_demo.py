"""The demo recipe: its epochs differ in steps, and its drafter is a good one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.batching import make_boundaries, make_epochs, make_statistics
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.tokens import make_snapshot
from dflash_pipeline.store.layout import Storage

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "recipes" / "demo.yaml"
ACCEPTANCE_FLOOR, MIN_PROMPTS = 2.4, 60


def test_the_recipe_loads_and_finds_its_files():
    recipe = load_recipe(DEMO)
    assert recipe.name == "demo"
    assert recipe.evaluation.prompts is not None
    for path in (recipe.target.path, recipe.evaluation.prompts, *(source.path for source in recipe.data.sources)):
        assert path.exists(), path
    assert recipe.evaluation.num_prompts >= MIN_PROMPTS


def test_its_epochs_differ_in_steps(tmp_path):
    """Planned over the files' own answers, which need no model: the rules, budget and seed are the demo's."""
    recipe = load_recipe(DEMO, ["responses.enabled=false"])
    storage = Storage(root=tmp_path / "storage")
    ingestion = make_conversations(recipe, storage).record
    snapshot = make_snapshot(recipe, storage, ingestion, make_responses(recipe, storage, ingestion).record).record
    boundaries = make_boundaries(recipe, storage, make_statistics(storage, snapshot))
    epochs = make_epochs(
        recipe, storage, snapshot, boundaries, range(recipe.batching.epochs), tell=lambda planned, manifest: None
    )
    assert len({planned.summary.num_steps for planned in epochs}) > 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_its_drafter_meets_the_floor(tmp_path):
    program = [sys.executable, "-c", "from dflash_pipeline.cli import main; main()"]
    inherited = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    done = subprocess.run(
        [*program, "run", str(DEMO), "--json"],
        env={**inherited, "DFLASH_STORAGE": str(tmp_path / "storage")},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    facts = json.loads(done.stdout)
    assert facts["acceptance"]["trained"] >= ACCEPTANCE_FLOOR
    assert facts["acceptance"]["num_prompts"] >= MIN_PROMPTS
    assert facts["acceptance"]["lossless"] is True
    assert facts["acceptance"]["trained"] > facts["acceptance"]["untrained"] + 0.5
    assert len({epoch["num_steps"] for epoch in facts["epochs"]}) > 1
