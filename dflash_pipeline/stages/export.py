"""From a finished run to a folder that servers read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import ExportedDrafter, TrainedDrafter
from dflash_pipeline.evaluation.export import export_drafter
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.model_card import model_card
from dflash_pipeline.store.files import folder_faults, set_aside
from dflash_pipeline.store.layout import Storage


def make_export(
    recipe: Recipe, storage: Storage, snapshot: CorpusSnapshot, plan: RunPlan, trained: TrainedDrafter
) -> Made[ExportedDrafter]:
    """The drafter in z-lab's form, with tokenizer and card; reused when whole and holding the run's weights."""
    # What a limited run has reached is no older state of what it reaches later: it stays, under a name of its own.
    reached = "" if trained.steps_done == trained.total_steps else f"-step-{trained.steps_done:07d}"
    out = storage.exports / f"{Path(trained.run_dir).name}{reached}"
    weights = load_file(Path(trained.checkpoint) / "model.safetensors")
    if out.exists() and (folder_faults(out) or not _holds(out, weights)):
        set_aside(out)
    reused = out.exists()
    if not reused:
        card = model_card(recipe, snapshot, plan, trained)
        export_drafter(recipe_drafter(recipe), weights, target_dir=recipe.target.path, out=out, card=card)
    record = ExportedDrafter(
        run=trained.run, export_dir=str(out), target_dir=str(recipe.target.path), num_tensors=len(weights)
    )
    return Made(record=record, reused=reused)


def _holds(export_dir: Path, weights: Mapping[str, Tensor]) -> bool:
    exported = load_file(export_dir / "model.safetensors")
    return exported.keys() == weights.keys() and all(exported[name].equal(weights[name]) for name in weights)
