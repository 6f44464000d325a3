"""The training op without Dagster, on the newest plan that a recipe's storage holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.launch.torchrun import torchrun_command
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.preflight import check_training
from dflash_pipeline.stages.progress import Tell
from dflash_pipeline.stages.training import Launch, finished_drafter, train_drafter
from dflash_pipeline.store.layout import open_storage
from dflash_pipeline.store.records import load_record


def train_alone(
    recipe_path: Path, overrides: Sequence[str], *, fresh: bool, tell: Tell
) -> tuple[Made[TrainedDrafter], list[str]]:
    """The finished run, and the torchrun line that started it."""
    recipe = load_recipe(recipe_path, overrides)
    storage = open_storage(recipe.storage)
    snapshot = load_record(storage.record(recipe.name, "token_sequences"), CorpusSnapshot)
    plan = load_record(storage.record(recipe.name, "run_plan"), RunPlan)
    launch = Launch(num_ranks=recipe.training.num_ranks, fresh=fresh, environment={})
    found = finished_drafter(recipe, storage, snapshot, plan, fresh=fresh)
    if found is None:
        check_training(recipe, storage, num_ranks=launch.num_ranks)
    trained = found or train_drafter(recipe, storage, snapshot, plan, launch, tell=tell)
    line = torchrun_command(Path(trained.run_dir) / "launch.json", num_ranks=launch.num_ranks)
    return Made(record=trained, reused=found is not None), line
