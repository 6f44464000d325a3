"""Cached decoding of many prompts by the target at once, each row at a length of its own.

R rows, S new tokens of each row, L of them with logits, T columns of the cache, F features (taps * H), V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache

from dflash_pipeline.model.rows import Place, Rows

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_FULL, _WINDOWED = "full_attention", "sliding_attention"
_POSITIONS_OF_ALL = {"dynamic", "longrope"}
"""Rotary positions of these kinds depend on the longest row: what is decoded beside a prompt would change it."""


class TargetRows(DynamicCache):
    """A cache of transformers' kind over `Rows`: what a layer adds goes where each row stands."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.rows = Rows(lengths=[0] * num_rows)
        self.at: Place | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.at is not None, "a place is set before the model runs"
        return self.rows.write(layer_idx, key_states, value_states, self.at)


def decodes_rows(model: PreTrainedModel) -> bool:
    """Whether rows of different lengths can be decoded together: positions are told to the model and are its own rotary
    ones, and every layer attends to all positions or to a window of them."""
    text = model.config.get_text_config(decoder=True)
    rotary = getattr(text, "rope_parameters", None) or {}
    # Either one set of parameters, or one for each kind of layer.
    sets = rotary.values() if "rope_type" not in rotary else [rotary]
    rope_types = {each.get("rope_type") for each in sets if isinstance(each, dict)}
    told = "position_ids" in inspect.signature(model.forward).parameters
    return told and not rope_types & _POSITIONS_OF_ALL and _kinds(text) <= {_FULL, _WINDOWED}


def mask_of(config: PreTrainedConfig, place: Place, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """Additive [R, 1, S, T]; one for each kind of layer where a model has both."""
    text = config.get_text_config(decoder=True)
    kinds, visible_RST = _kinds(text), place.causal
    by_kind = {_FULL: visible_RST}
    if _WINDOWED in kinds:
        column_T = torch.arange(place.width, device=place.columns.device)
        by_kind[_WINDOWED] = visible_RST & (place.columns[..., None] - column_T < text.sliding_window)
    additive = {kind: _additive(by_kind[kind], dtype) for kind in kinds}
    return additive if len(kinds) > 1 else additive.popitem()[1]


def _kinds(text: PreTrainedConfig) -> set[str]:
    if given := getattr(text, "layer_types", None):
        return set(given)
    windowed = getattr(text, "sliding_window", None) is not None and getattr(text, "use_sliding_window", True)
    return {_WINDOWED if windowed else _FULL}


def _additive(visible_RST: Tensor, dtype: torch.dtype) -> Tensor:
    # The least number and not -inf, as transformers writes its own masks.
    hidden = torch.finfo(dtype).min
    return torch.zeros(visible_RST.shape, dtype=dtype, device=visible_RST.device).masked_fill_(~visible_RST, hidden)[
        :, None
    ]
