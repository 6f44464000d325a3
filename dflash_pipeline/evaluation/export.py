"""A drafter's folder in z-lab's form or in speculators', written whole and read back without a guess."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_pipeline.contracts.errors import Refused, refusing
from dflash_pipeline.evaluation.speculators_format import (
    Verifier,
    from_speculators_json,
    is_speculators_json,
    to_speculators_json,
)
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.target_files import TOKENIZER_FILES
from dflash_pipeline.model.zlab_json import from_zlab_json, to_zlab_json, zlab_tensor_shapes
from dflash_pipeline.store.files import new_folder

WEIGHTS = "model.safetensors"


CARD = "README.md"


def export_drafter(
    config: DrafterConfig,
    state: Mapping[str, Tensor],
    *,
    target_dir: Path,
    out: Path,
    card: str,
    verifier: Verifier | None = None,
) -> None:
    """Write weights, config.json, the target's tokenizer and a model card; `out` appears whole or not at all.

    With a verifier the config is in speculators' form, which names the target; without one in z-lab's.
    """
    dtype = str(check_tensors(config, state, where=str(out))).removeprefix("torch.")
    form = to_zlab_json(config, dtype) if verifier is None else to_speculators_json(config, dtype, verifier)
    with new_folder(out, act="export") as folder:
        (folder / "config.json").write_text(json.dumps(form, indent=2) + "\n", encoding="utf-8")
        tensors = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        # As readable as the files beside it: it is written for its owner alone, and a server may be somebody else.
        shutil.copymode(folder / "config.json", folder / WEIGHTS)
        for name in TOKENIZER_FILES:
            if (target_dir / name).is_file():
                shutil.copyfile(target_dir / name, folder / name)
        (folder / CARD).write_text(card, encoding="utf-8")


def load_drafter(folder: Path) -> Drafter:
    """Read a drafter back, on the CPU and in its own type. Others leave a missing tensor random; this refuses."""
    config = read_config(folder)
    state = read_tensors(folder)
    check_tensors(config, state, where=str(folder / WEIGHTS))
    with torch.device("meta"):
        drafter = Drafter(config)
    drafter.load_state_dict(state, assign=True)
    return drafter.eval()


def read_config(folder: Path) -> DrafterConfig:
    """The shape of an exported drafter, in either form."""
    raw = read_config_json(folder)
    with refusing("not the config of a drafter", where=str(folder / "config.json"), fix="export the drafter again"):
        return from_speculators_json(raw) if is_speculators_json(raw) else from_zlab_json(raw)


def read_config_json(folder: Path) -> dict[str, object]:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"not readable: {error}", where=str(path), fix="export the drafter again") from None
    if not isinstance(raw, dict):
        raise Refused("not an object", where=str(path), fix="export the drafter again")
    return raw


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of an exported drafter, whatever it should have been."""
    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise Refused(f"not readable: {error}", where=str(folder / WEIGHTS), fix="export the drafter again") from None


def check_tensors(config: DrafterConfig, state: Mapping[str, Tensor], *, where: str) -> torch.dtype:
    """The one type of a drafter's tensors; refuses when names, shapes or types are not what its config implies."""
    expected = zlab_tensor_shapes(config)
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    misshapen = [
        f"{name} {tuple(state[name].shape)} instead of {shape}"
        for name, shape in sorted(expected.items())
        if name in state and tuple(state[name].shape) != shape
    ]
    dtypes = sorted({str(tensor.dtype) for tensor in state.values()})
    faults = [
        f"{what}: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
        for what, names in (
            ("missing", missing),
            ("unknown", extra),
            ("misshapen", misshapen),
            ("types differ", dtypes if len(dtypes) > 1 else []),
        )
        if names
    ]
    if faults:
        raise Refused("; ".join(faults), where=where, fix="export the drafter again from its checkpoint and config")
    return next(iter(state.values())).dtype
