"""From a run's newest checkpoint to folders that servers read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import ExportedDrafter, TrainedDrafter
from dflash_pipeline.evaluation.export import WEIGHTS, export_drafter, read_config
from dflash_pipeline.evaluation.speculators_format import Verifier
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.recipe import Export, Recipe
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.model_card import CardFacts, model_card
from dflash_pipeline.store.files import folder_faults, set_aside
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.checkpoint import CheckpointState
from dflash_pipeline.training.settings import LaunchConfig

SPECULATORS = "-speculators"
"""What the folder of speculators' form is called after z-lab's."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunWeights:
    """What is exported of a run: the weights and shape in its checkpoint, and all that the card says of them."""

    drafter: DrafterConfig
    tensors: Mapping[str, Tensor]
    target_dir: Path
    labels: Export
    card: CardFacts


def make_export(
    recipe: Recipe, storage: Storage, snapshot: CorpusSnapshot, plan: RunPlan, trained: TrainedDrafter
) -> Made[ExportedDrafter]:
    """The drafter in z-lab's form, and in speculators' if asked for; reused when whole and of the same weights."""
    digest = fingerprint(recipe=recipe.model_dump(mode="json"))
    weights = run_weights(
        recipe.target.path, recipe.export, snapshot=snapshot, plan=plan, trained=trained, recipe=digest
    )
    out = storage.exports / export_name(trained)
    beside = out.with_name(out.name + SPECULATORS) if recipe.export.speculators else None
    reused = _make(weights, out, speculators=False)
    if beside is not None:
        reused = _make(weights, beside, speculators=True) and reused
    record = ExportedDrafter(
        run=trained.run,
        export_dir=str(out),
        target_dir=str(recipe.target.path),
        num_tensors=len(weights.tensors),
        speculators_dir=None if beside is None else str(beside),
    )
    return Made(record=record, reused=reused)


def export_name(trained: TrainedDrafter) -> str:
    """What a limited run has reached is no older state of what it reaches later: it stays, under a name of its own."""
    reached = "" if trained.steps_done == trained.total_steps else f"-step-{trained.steps_done:07d}"
    return f"{Path(trained.run_dir).name}{reached}"


def run_weights(
    target_dir: Path,
    labels: Export,
    *,
    snapshot: CorpusSnapshot,
    plan: RunPlan,
    trained: TrainedDrafter,
    recipe: str | None = None,
) -> RunWeights:
    """What the run's checkpoint holds. The shape is the one that was trained, whatever a recipe says by now."""
    checkpoint = Path(trained.checkpoint)
    drafter = load_record(checkpoint / "state.json", CheckpointState).drafter
    card = CardFacts(
        target=target_dir.name,
        base_model=labels.base_model,
        licence=labels.licence,
        speculators=False,
        launch=load_record(Path(trained.run_dir) / "launch.json", LaunchConfig),
        drafter=drafter,
        snapshot=snapshot,
        plan=plan,
        trained=trained,
        recipe=recipe,
    )
    return RunWeights(
        drafter=drafter, tensors=load_file(checkpoint / WEIGHTS), target_dir=target_dir, labels=labels, card=card
    )


def write_export(weights: RunWeights, out: Path, *, speculators: bool) -> None:
    """One folder in one of the two forms; `out` must not exist."""
    export_drafter(
        weights.drafter,
        weights.tensors,
        target_dir=weights.target_dir,
        out=out,
        card=model_card(_labelled(weights.card, speculators)),
        verifier=_verifier(weights) if speculators else None,
    )


def _make(weights: RunWeights, out: Path, *, speculators: bool) -> bool:
    """Whether what is there was whole and the same; anything else is set aside and written again."""
    if out.exists() and (folder_faults(out) or not _holds(out, weights)):
        set_aside(out)
    if out.exists():
        return True
    write_export(weights, out, speculators=speculators)
    return False


def _holds(folder: Path, weights: RunWeights) -> bool:
    exported = load_file(folder / WEIGHTS)
    same = exported.keys() == weights.tensors.keys() and all(exported[n].equal(weights.tensors[n]) for n in exported)
    return same and read_config(folder) == weights.drafter


def _labelled(card: CardFacts, speculators: bool) -> CardFacts:
    return replace(card, speculators=speculators)


def _verifier(weights: RunWeights) -> Verifier:
    """The target by the name that the recipe gives it, or else by its folder."""
    config = json.loads((weights.target_dir / "config.json").read_text(encoding="utf-8"))
    return Verifier(
        name_or_path=weights.labels.base_model or str(weights.target_dir),
        architectures=tuple(config.get("architectures") or ()),
    )
