"""What a run leaves in the storage folder, by what lies there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.dry_run.lengths import KnownLengths
from dflash_pipeline.stages.dry_run.memory import Item, num_drafter_parameters
from dflash_pipeline.stages.preflight.fault import Fault
from dflash_pipeline.stages.preflight.machine import gib

_TOKEN = 4
"""Of a token: an int32 in the snapshot, and about so many characters of text."""
_SAMPLE = 200
"""Of a sample beside its tokens: its id twice, digest, place, spans."""
_SCHEDULED = 4
"""Of a sample in one epoch's manifest, its share of its micro-batch included: compressed, 3 for 902,000 of them."""
_STEP = 4_500
"""Of a step: a line of 450 bytes in the event log, and 13 points of 300 in MLflow's database, indexes included."""
_DATABASES = 64 * 2**20
"""Of Dagster, MLflow and the warehouse, before they hold anything to speak of."""


def storage_items(recipe: Recipe, lengths: KnownLengths, plan: RunPlan, drafter: DrafterConfig) -> tuple[Item, ...]:
    """Bytes of everything that the whole chain writes, nothing of it reused.

    The constants were measured on finished runs; of text DuckDB keeps less where it compresses. A checkpoint holds
    weights and two moments in float32, and one more stands there while the newest is written.
    """
    weights = 4 * num_drafter_parameters(drafter)
    kept = _kept(recipe, plan)
    width = len(drafter.tap_layer_ids) * drafter.hidden_size
    scheduled = sum(epoch.num_samples for epoch in plan.epochs)
    items = [
        Item(what="databases", num_bytes=_DATABASES, how="Dagster, MLflow and the warehouse, empty"),
        Item(what="conversations", num_bytes=_TOKEN * lengths.all_tokens, how="text, about 4 characters a token"),
        Item(
            what="snapshot",
            num_bytes=_TOKEN * lengths.all_tokens + _SAMPLE * lengths.all_samples,
            how=f"{_TOKEN} bytes a token, {_SAMPLE} a sample",
        ),
        Item(what="plan", num_bytes=_SCHEDULED * scheduled, how=f"{_SCHEDULED} bytes a sample and epoch"),
        Item(
            what="checkpoints",
            num_bytes=3 * weights * (kept + 1),
            how=f"weights and two moments, {kept} kept and one being written",
        ),
        Item(what="curves", num_bytes=_STEP * plan.total_steps, how=f"{_STEP:,} bytes a step: event log and MLflow"),
        Item(what="export", num_bytes=weights, how="weights in float32"),
    ]
    if recipe.training.warm_start == "champion":
        items.append(Item(what="first weights", num_bytes=weights, how="a copy of the champion's, if there is one"))
    if recipe.training.feature_cache_gib is not None:
        size = 4 * width * int(lengths.samples.num_tokens.sum())
        items.append(Item(what="features", num_bytes=size, how=f"{4 * width:,} bytes a training token"))
    return tuple(items)


def no_room(items: Sequence[Item], free: int, *, cache_gib: float | None, storage: Path) -> Iterator[Fault]:
    """What is known beforehand not to fit: all of it on the disk, and features within their own limit."""
    needed = sum(item.num_bytes for item in items)
    if needed > free:
        yield Fault(
            where=str(storage),
            what=f"the run would leave {gib(needed)}, and {gib(free)} are free",
            fix="free space, or give another storage folder",
        )
    features = sum(item.num_bytes for item in items if item.what == "features")
    if cache_gib is not None and features > cache_gib * 2**30:
        yield Fault(
            where="training.feature_cache_gib",
            what=f"the features of all training samples take {gib(features)}, and {cache_gib:g} GiB are allowed",
            fix="raise it, or leave it out: features are then computed in every step",
        )


def _kept(recipe: Recipe, plan: RunPlan) -> int:
    """Checkpoints that stay. Those by the clock, where all are kept, are not known before the run."""
    training = recipe.training
    if training.keep_checkpoints != -1:
        return training.keep_checkpoints
    return plan.num_epochs + (plan.total_steps // training.checkpoint_steps if training.checkpoint_steps else 0)
