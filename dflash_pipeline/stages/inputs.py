"""What a training starts from, as it lies on disk at this moment: one digest, cheap enough to ask every minute."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from dflash_pipeline.ingest.sources import expand
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.conversations import source_files
from dflash_pipeline.store.layout import Storage

NOT_INPUTS = frozenset({"name", "storage", "schedule", "early"})
"""Sections of a recipe that change nothing of what is trained."""


def inputs_digest(recipe: Recipe, storage: Storage) -> str:
    """Digest of the sources, the target, what is excluded and the recipe itself.

    Of files their names, sizes and times, not their bytes: no file is read. A file written again with the same bytes
    counts as changed; the run that follows finds everything as it was, and reuses it. Raises `Refused` where the
    recipe names a source that is not there.
    """
    sources = [source.path for source in expand(source_files(recipe.data))]
    others = [path for path in (recipe.target.chat_template, recipe.evaluation.prompts) if path is not None]
    files = [*sources, *sorted(_below(recipe.target.path)), *others, storage.exclusions]
    said = recipe.model_dump(mode="json", exclude=set(NOT_INPUTS))
    text = json.dumps([said, [_looks(path) for path in files]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _looks(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (str(path), -1, -1)
    return (str(path), status.st_size, status.st_mtime_ns)
