"""What the headers of a target's weights tell. No tensor is read."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from dflash_pipeline.contracts.errors import Refused, refusing
from dflash_pipeline.model.target_files import check_target_folder

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_OF_A_LAYER = re.compile(r"\.\d+\.")
_FIX = "copy or download the target again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """How large a target is."""

    num_parameters: int
    num_layer_parameters: int
    """Those whose name has a number in it: of the layers, and not of embedding, head or last norm."""
    embedding_rows: int | None
    """None: no tensor has one of the customary names."""


def read_weights(folder: Path) -> Weights:
    """The sizes that the headers state; refused when a file is missing, torn or no safetensors."""
    check_target_folder(folder)
    num_parameters, in_layers, rows = 0, 0, None
    for path in _files(folder):
        for name, shape in _shapes(path).items():
            num_parameters += math.prod(shape)
            in_layers += math.prod(shape) if _OF_A_LAYER.search(name) else 0
            if name.endswith(_EMBEDDINGS) and len(shape) == 2:
                rows = shape[0]
    return Weights(num_parameters=num_parameters, num_layer_parameters=in_layers, embedding_rows=rows)


def _files(folder: Path) -> list[Path]:
    """Those that transformers loads: some folders hold the same weights once more under other names."""
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    index = folder / _INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    with refusing("no list of weights can be read", where=str(index), fix=_FIX):
        names = sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise Refused(f"{', '.join(missing)} is listed and not there", where=str(index), fix=_FIX)
    return [folder / name for name in names]


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with refusing("no weights can be read", where=str(path), fix=_FIX), safe_open(path, framework="numpy") as opened:
        return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 (no mapping)
