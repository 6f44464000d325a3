"""All figures of a dry run: the epochs are planned as the real run plans them, and thrown away."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.forecast import TimeModel
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.batching import batching_spec, recipe_boundaries
from dflash_pipeline.stages.drafter_shape import drafter_of
from dflash_pipeline.stages.dry_run.hours import assumed_hours, epoch_seconds, measured_hours
from dflash_pipeline.stages.dry_run.lengths import KnownLengths, known_lengths
from dflash_pipeline.stages.dry_run.memory import Holding, Item, RankMemory, largest, rank_memory
from dflash_pipeline.stages.dry_run.room import no_room, storage_items
from dflash_pipeline.stages.dry_run.shapes import batch_shapes
from dflash_pipeline.stages.dry_run.target import TargetSize, target_size
from dflash_pipeline.stages.forecast import measured_run
from dflash_pipeline.stages.launch_config import training_settings
from dflash_pipeline.stages.preflight import OF_DATA, OF_TRAINING
from dflash_pipeline.stages.preflight.fault import Fault
from dflash_pipeline.stages.preflight.machine import this_machine
from dflash_pipeline.stages.preflight.memory import check_devices
from dflash_pipeline.stages.preflight.subject import Subject, gather
from dflash_pipeline.stages.warm_start import told_beforehand
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.training.settings import LaunchConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LargestBatch:
    """The micro-batch that takes most memory, and how much."""

    epoch: int
    step: int
    slot: int
    num_samples: int
    padded_length: int
    num_blocks: int
    memory: RankMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What the sizes of tensors follow from."""

    target: TargetSize
    drafter: DrafterConfig
    holding: Holding
    anchor_share: float
    anchors_per_sample: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Planned:
    """A run's plan, its largest micro-batch, and by a time model the seconds of all epochs."""

    plan: RunPlan
    largest: LargestBatch
    seconds: float | None


def dry_run(recipe: Recipe, storage: Storage, lengths_file: Path | None, *, known: dict[str, Any]) -> dict[str, Any]:
    """Everything that can be said of the run without starting it. Writes nothing, and looks at no GPU.

    `known` gets what is found on the way, for an answer that ends early. Refused when no lengths are known, when the
    target has no config, or where planning would refuse.
    """
    began = time.monotonic()
    machine = this_machine(storage, device="cpu")
    subject = gather(recipe, storage, num_ranks=recipe.training.num_ranks, machine=machine, with_data=True)
    faults = list(_faults(subject))
    known["faults"] = [asdict(fault) for fault in faults]
    lengths = known_lengths(recipe, storage, lengths_file, subject)
    sizes = _sizes(recipe)
    spec = batching_spec(recipe, recipe_boundaries(recipe, length_statistics(lengths.samples)))
    measured = measured_run(storage.runs, lambda config: _alike(config, recipe, sizes.drafter))
    planned = _plan(recipe, lengths.samples, spec, sizes, None if measured is None else measured[1])
    hours = assumed_hours(planned.plan, recipe)
    if measured is not None and planned.seconds is not None:
        hours = measured_hours(planned.seconds, measured[1], measured[0])
    items = storage_items(recipe, lengths, planned.plan, sizes.drafter)
    faults += no_room(items, machine.free_disk, cache_gib=recipe.training.feature_cache_gib, storage=storage.root)
    known["faults"] = [asdict(fault) for fault in faults]
    return {
        "dry_run": True,
        "lengths": _lengths_facts(lengths),
        **_plan_facts(planned.plan, lengths),
        "stops_after": recipe.training.max_steps,
        "warm_start": told_beforehand(recipe, storage),
        "memory": _memory_facts(planned.largest, recipe),
        "storage": {"items": _items(items), "bytes": _sum(items), "free_bytes": machine.free_disk},
        "hours": asdict(hours),
        **known,
        "target_dir": str(recipe.target.path),
        "seconds": time.monotonic() - began,
    }


def _faults(subject: Subject) -> tuple[Fault, ...]:
    """What the preflight finds, devices aside: those are not looked at."""
    checks = [check for check in (*OF_TRAINING, *OF_DATA) if check is not check_devices]
    return tuple(dict.fromkeys(fault for check in checks for fault in check(subject)))


def _sizes(recipe: Recipe) -> Sizes:
    target = target_size(recipe.target.path)
    settings = training_settings(recipe)
    return Sizes(
        target=target,
        drafter=drafter_of(recipe, target.config),
        holding=_holding(recipe),
        anchor_share=settings.anchor_share,
        anchors_per_sample=settings.anchors_per_sample,
    )


def _holding(recipe: Recipe) -> Holding:
    training = recipe.training
    alone = training.num_ranks == 1
    return Holding(
        num_ranks=training.num_ranks,
        drafter_in_parts=training.drafter_sharding == "fsdp" and not alone,
        target_in_parts=training.target_sharding == "fsdp" and not alone,
        device=training.device,
        number=2 if training.device == "cuda" else 4,
        recomputed=training.activation_checkpointing,
        kl=training.kl > 0,
    )


def _alike(config: LaunchConfig, recipe: Recipe, drafter: DrafterConfig) -> bool:
    """Whether the step times of a run are those of this one: target, its last layers or not, drafter and device."""
    same_target = Path(config.target_dir) == recipe.target.path  # Its weights are not read.
    same_forward = (config.settings.objective.kl > 0) == (recipe.training.kl > 0)
    return same_target and same_forward and config.drafter == drafter and config.device == recipe.training.device


def _plan(
    recipe: Recipe, samples: SampleLengths, spec: BatchingSpec, sizes: Sizes, time_model: TimeModel | None
) -> _Planned:
    summaries, found, seconds = [], list[LargestBatch](), 0.0
    for epoch in range(recipe.batching.epochs):
        manifest = build_epoch_manifest(samples, spec, epoch=epoch)
        summaries.append(manifest.summary())
        found.append(_largest_batch(manifest, samples, sizes))
        if time_model is not None:
            seconds += epoch_seconds(manifest, samples, time_model, num_ranks=recipe.training.num_ranks)
    return _Planned(
        plan=RunPlan(snapshot=samples.snapshot, spec=spec, epochs=tuple(summaries)),
        largest=max(found, key=lambda batch: batch.memory.num_bytes),
        seconds=None if time_model is None else seconds,
    )


def _largest_batch(manifest: EpochManifest, samples: SampleLengths, sizes: Sizes) -> LargestBatch:
    shapes = batch_shapes(
        manifest,
        samples,
        block_size=sizes.drafter.block_size,
        anchor_share=sizes.anchor_share,
        anchors_per_sample=sizes.anchors_per_sample,
    )
    at = largest(shapes, target=sizes.target, drafter=sizes.drafter, holding=sizes.holding)
    step, slot = divmod(at, manifest.slots_per_step)
    return LargestBatch(
        epoch=manifest.epoch,
        step=step,
        slot=slot,
        num_samples=int(manifest.batch_sizes[step, slot]),
        padded_length=int(manifest.padded_length[step, slot]),
        num_blocks=int(shapes.blocks[at]),
        memory=rank_memory(shapes, at, target=sizes.target, drafter=sizes.drafter, holding=sizes.holding),
    )


def _lengths_facts(lengths: KnownLengths) -> dict[str, Any]:
    return {
        "origin": lengths.origin,
        "says": lengths.says,
        "estimated": lengths.estimated,
        "num_samples": int(lengths.samples.num_tokens.size),
        "num_tokens": int(lengths.samples.num_tokens.sum()),
        "num_supervised_tokens": int(lengths.samples.num_supervised.sum()),
    }


def _plan_facts(plan: RunPlan, lengths: KnownLengths) -> dict[str, Any]:
    """Of a snapshot they are facts, and the plan has its name; of other lengths it would have another."""
    real = lengths.origin == "snapshot"
    return {
        "snapshot": plan.snapshot if real else None,
        "plan": plan.fingerprint if real else None,
        "boundaries": [0, *plan.spec.boundaries],
        "total_steps": plan.total_steps,
        "num_micro_batches": sum(epoch.num_micro_batches for epoch in plan.epochs),
        "epochs": [
            {
                "epoch": epoch.epoch,
                "num_steps": epoch.num_steps,
                "num_micro_batches": epoch.num_micro_batches,
                "real_tokens": epoch.real_tokens,
                "padded_tokens": epoch.padded_tokens,
                "padding_efficiency": epoch.padding_efficiency,
            }
            for epoch in plan.epochs
        ],
    }


def _memory_facts(batch: LargestBatch, recipe: Recipe) -> dict[str, Any]:
    items = batch.memory.items
    return {
        "device": recipe.training.device,
        "num_ranks": recipe.training.num_ranks,
        "items": _items(items),
        "bytes_per_rank": _sum(items),
        "moment": batch.memory.moment,
        "largest_micro_batch": {
            "epoch": batch.epoch,
            "step": batch.step,
            "slot": batch.slot,
            "num_samples": batch.num_samples,
            "padded_length": batch.padded_length,
            "num_blocks": batch.num_blocks,
        },
    }


def _items(items: Sequence[Item]) -> list[dict[str, Any]]:
    return [{"what": item.what, "bytes": item.num_bytes, "how": item.how} for item in items]


def _sum(items: Sequence[Item]) -> int:
    return sum(item.num_bytes for item in items)
