"""A recipe in which nothing is wrong, a machine with room, and ways to spoil what the recipe names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.stages.preflight import Fault, Machine, look_over
from dflash_pipeline.store.layout import Storage
from tests.conftest import ROOT, write_recipe

TARGET = ROOT / "examples" / "target"
ROOMY = Machine(
    free_disk=2**40,
    storage_error=None,
    free_memory=2**40,
    free_shared_memory=2**40,
    port_error=None,
    device_memory=(),
)


def recipe(folder: Path, **sections: dict[str, Any]) -> Recipe:
    return load_recipe(write_recipe(folder / "recipe.yaml", **sections))


def faults(folder: Path, *, machine: Machine = ROOMY, **sections: dict[str, Any]) -> tuple[Fault, ...]:
    return look_over(recipe(folder, **sections), Storage(root=folder / "storage"), machine=machine).faults


def with_rows(folder: Path, name: str, rows: list[object]) -> dict[str, Any]:
    """Settings that make these rows the only source."""
    (folder / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return {"sources": [{"path": name}], "max_rows": None}


def spoiled_target(folder: Path, *, config: dict[str, Any] | None = None, **files: str | None) -> dict[str, Any]:
    """Settings with a copy of the target: its config changed, and files written anew, or taken away by None."""
    copy = Path(shutil.copytree(TARGET, folder / "target", copy_function=shutil.copyfile))
    copy.chmod(0o755)
    settings = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**settings, **(config or {})}), encoding="utf-8")
    for name, text in files.items():
        path = copy / name
        if text is None:
            path.unlink()
        else:
            path.write_text(text, encoding="utf-8")
    return {"path": str(copy)}


def only(found: tuple[Fault, ...]) -> Fault:
    assert len(found) == 1, [str(fault) for fault in found]
    return found[0]
