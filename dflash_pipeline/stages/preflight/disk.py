"""Whether the disk has room for what a run leaves there, judged by the first rows and the drafter's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.preflight.fault import Fault
from dflash_pipeline.stages.preflight.machine import gib
from dflash_pipeline.stages.preflight.sample import SourceSample
from dflash_pipeline.stages.preflight.subject import Subject
from dflash_pipeline.store.layout import Storage

_TOKEN = 4
_MANIFEST_ENTRY = 8
_DATABASES = 64 * 2**20
"""Of Dagster, MLflow and the warehouse, before they hold anything to speak of."""


def check_disk(subject: Subject) -> Iterator[Fault]:
    """The storage folder can be written, and has room for what the run will leave there."""
    machine, root = subject.machine, subject.storage.root
    if machine.storage_error is not None:
        yield Fault(
            where=str(root),
            what=f"the storage folder cannot be written: {machine.storage_error}",
            fix="name another one, as `storage` in the recipe or by DFLASH_STORAGE",
        )
        return
    needs = disk_needs(subject)
    if sum(needs.values()) > machine.free_disk:
        parts = ", ".join(f"{what} {gib(size)}" for what, size in needs.items() if size)
        yield Fault(
            where=str(root),
            what=f"{gib(machine.free_disk)} are free, and at least {gib(sum(needs.values()))} are needed ({parts})",
            fix="free space, name another storage folder, or lower training.keep_checkpoints",
        )


def disk_needs(subject: Subject) -> dict[str, int]:
    """Bytes by what will lie there, without what earlier runs of the recipe have left already."""
    recipe, samples = subject.recipe, subject.samples
    kept = recipe.training.keep_checkpoints
    num_checkpoints = 1 + (recipe.batching.epochs if kept == -1 else kept)  # One more while the newest is written.
    held = _held(recipe, subject.storage)
    rows = {sample.where: _num_rows(sample, recipe) for sample in samples}
    return {
        "databases": _DATABASES if samples else 0,
        "conversations": max(sum(_text_bytes(s, rows[s.where]) for s in samples) - held["conversations"], 0),
        "snapshot": max(sum(_token_bytes(s, rows[s.where]) for s in samples) - held["snapshot"], 0),
        "manifests": sum(int(rows[s.where] * s.weight) for s in samples) * _MANIFEST_ENTRY * recipe.batching.epochs,
        # Weights and two moments.
        "checkpoints": max(3 * subject.drafter_bytes * num_checkpoints - held["checkpoints"], 0),
        "export": subject.drafter_bytes,
        "features": max(_feature_bytes(subject) - held["features"], 0),
    }


def check_features(subject: Subject) -> Iterator[Fault]:
    """Features that are to be kept stay below the recipe's limit."""
    limit, needed = subject.recipe.training.feature_cache_gib, _feature_bytes(subject)
    if limit is not None and needed > limit * 2**30:
        yield Fault(
            where="training.feature_cache_gib",
            what=f"the features of the training samples take about {gib(needed)}, and the limit is {limit:g} GiB",
            fix="raise it, or leave it out: features are then computed in every step",
        )


def _feature_bytes(subject: Subject) -> int:
    """About what the kept features take; 0 when none are to be kept."""
    drafter, recipe = subject.drafter, subject.recipe
    if recipe.training.feature_cache_gib is None or drafter is None:
        return 0
    width = len(drafter.tap_layer_ids) * drafter.hidden_size
    return width * sum(_token_bytes(sample, _num_rows(sample, recipe)) for sample in subject.samples)


def _num_rows(sample: SourceSample, recipe: Recipe) -> int:
    """About how many rows the source has, by the size of the first ones."""
    if not sample.num_taken:
        return 0
    rows = sample.num_bytes * sample.num_taken // max(sample.num_characters, 1)
    most = recipe.data.max_rows
    return rows if most is None else min(rows, most * sample.num_files)


def _text_bytes(sample: SourceSample, num_rows: int) -> int:
    return num_rows * sample.num_characters // max(sample.num_taken, 1)


def _token_bytes(sample: SourceSample, num_rows: int) -> int:
    forms = sample.all_forms
    return int(num_rows * sample.weight * _TOKEN * forms.num_tokens / max(forms.num_samples, 1))


def _held(recipe: Recipe, storage: Storage) -> Mapping[str, int]:
    """What earlier runs of the recipe have left, and the next one uses again if nothing has changed."""
    snapshot = _json(storage.record(recipe.name, "token_sequences")).get("fingerprint")
    runs = [path.parent for path in storage.runs.glob("*/launch.json") if _json(path).get("experiment") == recipe.name]
    newest = max(runs, key=lambda run: run.stat().st_mtime_ns, default=None)
    return {
        "conversations": _size(storage.warehouse) if storage.record(recipe.name, "conversations").exists() else 0,
        "snapshot": _size(storage.snapshots / snapshot) if isinstance(snapshot, str) else 0,
        "features": _size(storage.features),
        "checkpoints": 0 if newest is None else _size(newest / "checkpoints"),
    }


def _json(path: Path) -> dict[str, Any]:
    """A record as it lies there. One that cannot be read is nothing to count on, and its own stage will say so."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _size(path: Path) -> int:
    """Of a file, or of all the files below a folder; 0 of what is not there."""
    files = [path] if path.is_file() else [below for below in path.rglob("*") if below.is_file()]
    return sum(file.stat().st_size for file in files)
