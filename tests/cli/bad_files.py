"""A folder of things that are not what a command asks for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from dflash_pipeline.cli import main
from dflash_pipeline.evaluation.export import export_drafter
from dflash_pipeline.model.config import drafter_config
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.loading import load_config

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "examples" / "target"
Spoil = Callable[[Path], object]


def fill(folder: Path) -> None:
    """`folder` with good and bad files; paths in the cases are relative to it."""
    (folder / "dir").mkdir()
    for suffix in ("", ".yaml", ".npy", ".parquet", ".jsonl", ".json", ".jinja"):
        (folder / f"empty{suffix}").touch()
        (folder / f"binary{suffix}").write_bytes(bytes(range(256)) * 8)
    _lengths(folder)
    _rows(folder)
    _recipes(folder)
    _exports(folder)
    _targets(folder)
    _plans(folder)


def _lengths(folder: Path) -> None:
    arrays = {
        "good": np.arange(10, 200),
        "floats": np.ones(5),
        "square": np.ones((3, 3), int),
        "negative": np.array([5, -1]),
        "none": np.array([], int),
        "huge": np.array([2**62, 5]),
        "unsigned": np.array([2**64 - 1, 3], dtype=np.uint64),
        "single": np.int64(3),
        "flags": np.array([True, False]),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(folder / "several.npz", a=np.arange(3))
    tables = {
        "no_column": {"x": [1]},
        "null": {"length": [1, None]},
        "text": {"length": ["a"]},
        "nested": {"length": [[1], [2]]},
        "more_supervised": {"length": [5, 6], "supervised": [9, 1]},
        "supervised_text": {"length": [5], "supervised": ["a"]},
    }
    for name, table in tables.items():
        pq.write_table(pa.table(table), folder / f"{name}.parquet")


def _rows(folder: Path) -> None:
    rows = [{"question": f"How much is {n} and {n}?", "answer": f"It is {2 * n}."} for n in range(8)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "no_prompt.jsonl").write_text('{"question": 3}\n')
    (folder / "torn.jsonl").write_text('{"question": "a"\n')
    (folder / "deep.jsonl").write_text("[" * 100_000)


def _recipes(folder: Path) -> None:
    good = {
        "name": "small",
        "storage": str(folder / "recipe_storage"),
        "data": {
            "sources": [{"path": "rows.jsonl", "map": {"user": "question", "assistant": "answer"}}],
            "max_length": 512,
        },
        "target": {"path": str(TARGET)},
        "responses": {"enabled": False},
        "drafter": {"num_layers": 2, "tap_layer_ids": [0, 2]},
        "batching": {"slots_per_step": 1, "epochs": 1},
        "training": {"num_ranks": 1},
    }
    text = yaml.safe_dump(good)
    texts = {
        "good": text,
        "unknown": text + "bogus: 1\n",
        "twice": text + "name: other\n",
        "list": "- 1\n",
        "word": "x",
        "deep": "[" * 5_000,
        "tab": "name:\n\tx: 1\n",
        "date": "name: 2026-99-99\n",
        "object": "name: !!python/object/apply:os.getcwd []\n",
    }
    for name, content in texts.items():
        (folder / f"{name}.yaml").write_text(content)


def _exports(folder: Path) -> None:
    config = drafter_config(
        load_config(TARGET), num_layers=1, block_size=4, tap_layer_ids=(0, 1), mask_token_id=2, intermediate_size=64
    )
    state = Drafter.initialised(config, 0).state_dict()
    export_drafter(config, state, target_dir=TARGET, out=folder / "export", card="A test's.")
    spoils: dict[str, Spoil] = {
        "renamed_tensor": _rename_a_tensor,
        "not_finite": _put_nan,
        "no_config": lambda export: (export / "config.json").unlink(),
        "binary_config": lambda export: (export / "config.json").write_bytes(b"\xff\xfe"),
        "list_config": lambda export: (export / "config.json").write_text("[]"),
        "odd_layer_types": _setting(layer_types=5),
        "odd_dflash": _setting(dflash_config=[1]),
        "odd_rope": _setting(rope_parameters="x"),
        "odd_size": _setting(hidden_size="wide"),
        "odd_count": _setting(num_hidden_layers=[]),
        "no_weights": lambda export: (export / "model.safetensors").unlink(),
        "empty_weights": lambda export: (export / "model.safetensors").write_bytes(b""),
    }
    _spoiled(folder / "export", folder, spoils)


def _targets(folder: Path) -> None:
    spoils: dict[str, Spoil] = {
        "target_without_weights": lambda target: (target / "model.safetensors").unlink(),
        "target_torn_weights": lambda target: (target / "model.safetensors").write_bytes(b"abc"),
        "target_without_config": lambda target: (target / "config.json").unlink(),
        "target_torn_config": lambda target: (target / "config.json").write_text("{"),
        "target_list_config": lambda target: (target / "config.json").write_text("[]"),
        "target_of_no_kind": _setting(model_type="nosuch"),
        "target_of_other_size": _setting(hidden_size=48),
        "target_odd_vocabulary": _setting(vocab_size="x"),
        "target_odd_tokenizer": lambda target: (target / "tokenizer.json").write_text("{}"),
        "target_odd_tokenizer_config": lambda target: (target / "tokenizer_config.json").write_text("[]"),
        "target_without_tokenizer": lambda target: (target / "tokenizer.json").unlink(),
        "target_odd_settings": lambda target: (target / "generation_config.json").write_text("[]"),
        "target_torn_template": lambda target: (target / "chat_template.jinja").write_text("{% for"),
    }
    _spoiled(TARGET, folder, spoils)


def _plans(folder: Path) -> None:
    given = ["plan", "--lengths", str(folder / "good.npy"), "--token-budget", "1000", "--slots-per-step", "2"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*given, "--out", str(folder / "plan")])
    spoils: dict[str, Spoil] = {
        "plan_without_epoch": lambda plan: (plan / "epoch-000.parquet").unlink(),
        "plan_empty_epoch": lambda plan: (plan / "epoch-000.parquet").write_bytes(b""),
        "plan_other_table": lambda plan: pq.write_table(pa.table({"x": [1]}), plan / "epoch-000.parquet"),
        "plan_empty_seal": lambda plan: [seal.write_text("{}") for seal in plan.glob("plan-*.json")],
        "plan_binary_seal": lambda plan: [seal.write_bytes(b"\xff") for seal in plan.glob("plan-*.json")],
        "plan_renamed_seal": lambda plan: [seal.rename(plan / "plan-x.json") for seal in plan.glob("plan-*.json")],
    }
    _spoiled(folder / "plan", folder, spoils)


def _spoiled(whole: Path, folder: Path, spoils: dict[str, Spoil]) -> None:
    for name, spoil in spoils.items():
        copy = Path(shutil.copytree(whole, folder / name, copy_function=shutil.copyfile))
        copy.chmod(0o755)
        spoil(copy)


def _setting(**settings: object) -> Spoil:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))

    return change


def _rename_a_tensor(export: Path) -> None:
    tensors = load_file(export / "model.safetensors")
    tensors["layers.0.renamed.weight"] = tensors.pop(sorted(tensors)[0])
    save_file(tensors, export / "model.safetensors")


def _put_nan(export: Path) -> None:
    tensors = load_file(export / "model.safetensors")
    name = sorted(tensors)[0]
    save_file(tensors | {name: torch.full_like(tensors[name], float("nan"))}, export / "model.safetensors")
