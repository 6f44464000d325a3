"""One real run of the whole chain, shared by every test that looks at what such a run leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings as hypothesis_settings

from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.store.layout import Storage

ROOT = Path(__file__).parents[1]

# A shell starts what it puts in the background with interrupts ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Time on a shared machine says nothing about the code. `make test` draws the same examples each time, so that it fails
# for a change and not by chance; `make explore` draws other ones each time, and more.
hypothesis_settings.register_profile("same", deadline=None, derandomize=True, max_examples=50)
hypothesis_settings.register_profile("explore", deadline=None, max_examples=400)
hypothesis_settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A recipe file, the storage it was run in, and the answer of the run."""

    recipe_file: Path
    storage: Storage
    facts: dict[str, Any]

    @property
    def recipe(self) -> Recipe:
        return load_recipe(self.recipe_file)

    def copy(self, root: Path) -> Chain:
        """The same, in a storage of its own that a test may spoil."""
        shutil.copytree(self.storage.root, root)
        return Chain(recipe_file=self.recipe_file, storage=Storage(root=root), facts=self.facts)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`dflash COMMAND RECIPE OPTIONS --json` as a process of its own."""
        command, *options = arguments
        program = [sys.executable, "-c", "from dflash_pipeline.cli import main; main()"]
        inherited = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
        return subprocess.Popen(
            [*program, command, str(self.recipe_file), *options, "--json"],
            env={**inherited, "DFLASH_STORAGE": str(self.storage.root), "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self, *arguments: str, timeout: float = 250) -> dict[str, Any]:
        """The JSON document of a command that must succeed."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.terminate()  # Nothing, once it has ended; its ranks end with it.
        assert process.returncode == 0, f"{out}\n{err}"
        document: dict[str, Any] = json.loads(out)
        return document


def tiny_recipe(**sections: dict[str, Any]) -> dict[str, Any]:
    """Settings that train in seconds: 32 conversations, two epochs of a few steps, eight slots on two ranks."""
    recipe: dict[str, Any] = {
        "name": "tiny",
        "data": {
            "sources": [
                {
                    "path": str(ROOT / "examples" / "conversations" / "gsm8k_train.jsonl"),
                    "map": {"user": "question", "assistant": "answer"},
                }
            ],
            "max_rows": 32,
            "validation_fraction": 0.1,
            "max_length": 192,
        },
        "target": {"path": str(ROOT / "examples" / "target")},
        "responses": {"max_new_tokens": 24, "batch_size": 16},
        "batching": {"num_buckets": 3, "token_budget": 448, "slots_per_step": 8, "epochs": 2, "seed": 3},
        "drafter": {"num_layers": 1, "block_size": 4, "tap_layer_ids": [0, 2], "intermediate_size": 64, "seed": 1},
        "training": {"num_ranks": 2, "learning_rate": 0.005, "anchors_per_sample": 8},
        "early": {"enabled": False},
        "evaluation": {"num_prompts": 2, "max_new_tokens": 12},
    }
    for section, settings in sections.items():
        recipe[section] = {**recipe.get(section, {}), **settings}
    return recipe


def write_recipe(path: Path, **sections: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(tiny_recipe(**sections)))
    return path


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """`dflash run` on the tiny recipe, once for the whole session. Look, do not touch: `copy` it to change anything."""
    folder = tmp_path_factory.mktemp("chain")
    empty = Chain(recipe_file=write_recipe(folder / "tiny.yaml"), storage=Storage(root=folder / "storage"), facts={})
    return Chain(recipe_file=empty.recipe_file, storage=empty.storage, facts=empty.answer("run"))
