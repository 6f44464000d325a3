"""The frozen target: features for the drafter, its embedding and output head, and cached decoding.

R rows, S tokens, F features (taps * H), H hidden, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.loading import Dtype, load_causal_lm
from dflash_pipeline.model.rows import Place
from dflash_pipeline.model.target_rows import TargetRows, decodes_rows, mask_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_GROWING_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers whose cache is keys and values by position, and can be cut back after a refused draft."""


class FrozenTarget:
    """A causal language model that is only read: no gradient, no dropout, no mask for right padding (it is causal)."""

    def __init__(self, model: PreTrainedModel, *, tap_layer_ids: tuple[int, ...]) -> None:
        self._model = model.requires_grad_(False)
        self._model.train(mode=False)
        self.tap_layer_ids = tap_layer_ids
        layers = decoder_layers(model)
        if tap_layer_ids and not 0 <= min(tap_layer_ids) <= max(tap_layer_ids) <= len(layers) - 2:
            raise Refused(
                f"tap layers {list(tap_layer_ids)} of a target with {len(layers)} layers",
                where="tap_layer_ids",
                fix=f"use layers 0 to {len(layers) - 2}",
            )
        self._tapped: dict[int, Tensor] = {}
        for tap in tap_layer_ids:
            layers[tap].register_forward_hook(self._keeper(tap))
        self._trunk = _cut(model.base_model, layers, after=max(tap_layer_ids, default=0))
        self._embedding = _embedding_table(model)
        # The name changed within transformers 5.
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    @classmethod
    def load(
        cls, path: Path, *, tap_layer_ids: tuple[int, ...], device: str = "cpu", dtype: Dtype = "float32"
    ) -> FrozenTarget:
        """Load from a local folder: safetensors only, none of its own code."""
        return cls(load_causal_lm(path, device=device, dtype=dtype), tap_layer_ids=tap_layer_ids)

    @property
    def config(self) -> PreTrainedConfig:
        config: PreTrainedConfig = self._model.config
        return config

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    @property
    def vocab_size(self) -> int:
        return self._embedding.shape[0]

    @torch.no_grad()
    def features(self, input_ids_RS: Tensor) -> Tensor:
        """Outputs of the tap layers, side by side [R, S, F]. The forward ends at the last tap; nothing is decoded."""
        self._trunk(input_ids=input_ids_RS, use_cache=False)
        return self._take_tapped()

    @torch.no_grad()
    def features_and_last(self, input_ids_RS: Tensor) -> tuple[Tensor, Tensor]:
        """Features, and the hidden states [R, S, H] that the output head reads: a forward through every layer."""
        last: Tensor = self._model.base_model(input_ids=input_ids_RS, use_cache=False).last_hidden_state
        return self._take_tapped(), last

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Rows [.., H] of the raw embedding table, as serving engines read it for the drafter."""
        return functional.embedding(ids, self._embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """The output head [.., V]. Gradients pass through to `hidden`."""
        logits: Tensor = self._model.get_output_embeddings()(hidden)
        return logits

    @torch.no_grad()
    def through_head(self, gradient: Tensor) -> Tensor:
        """The gradient [.., H] by `hidden` of something whose gradient by `logits(hidden)` [.., V] is given."""
        weight: Tensor = self._model.get_output_embeddings().weight
        return gradient @ weight

    def new_cache(self) -> DynamicCache:
        """An empty cache for `decode_step` that keeps every position, so that it can be cut back anywhere."""
        kinds = set(getattr(self.config.get_text_config(decoder=True), "layer_types", None) or ())
        if kinds - _GROWING_LAYERS:
            raise Refused(
                f"a target with {sorted(kinds - _GROWING_LAYERS)} layers cannot take back a refused draft",
                where="target",
                fix="evaluate the drafter in a serving engine that supports this target",
            )
        return DynamicCache()

    @torch.no_grad()
    def decode_step(self, ids_S: Tensor, cache: DynamicCache, *, num_logits: int) -> tuple[Tensor, Tensor]:
        """Run new tokens after those in the cache: logits [.., V] of the last `num_logits`, features [S, F] of all."""
        output = self._model(
            input_ids=ids_S[None], use_cache=True, logits_to_keep=num_logits, **{self._cache_name: cache}
        )
        features_1SF = self._take_tapped() if self.tap_layer_ids else output.logits.new_zeros(1, ids_S.shape[0], 0)
        return output.logits[0, -num_logits:], features_1SF[0]

    @property
    def decodes_rows(self) -> bool:
        """Whether `decode_rows` is for this target."""
        return decodes_rows(self._model)

    @torch.no_grad()
    def decode_rows(self, ids_RS: Tensor, cache: TargetRows, place: Place, *, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Run new tokens of rows after those in the cache: logits [R, L, V] of the new ones at `keep` [L], features
        [R, S, F] of all."""
        cache.at = place
        output = self._model(
            input_ids=ids_RS,
            attention_mask=mask_of(self.config, place, self.dtype),
            position_ids=place.columns,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_name: cache},
        )
        features_RSF = self._take_tapped() if self.tap_layer_ids else output.logits.new_zeros(*ids_RS.shape, 0)
        return output.logits, features_RSF

    def _take_tapped(self) -> Tensor:
        tapped = [self._tapped[tap] for tap in self.tap_layer_ids]
        self._tapped.clear()
        return torch.cat(tapped, dim=-1)

    def _keeper(self, tap: int) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._tapped[tap] = output[0] if isinstance(output, tuple) else output

        return keep


def check_plain_head(config: PreTrainedConfig, *, where: str) -> None:
    """Refuse a target that bends its logits after the output head: what is read off the head is not its distribution.

    Greedy answers and cross entropy to text stay right; a divergence from the target's distribution would not.
    """
    text = config.get_text_config(decoder=True)
    bends = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}
    found = [name for name, none in bends.items() if getattr(text, name, none) not in (none, None)]
    if found:
        raise Refused(
            f"the target changes its logits after the output head ({', '.join(found)})",
            where=where,
            fix="set training.kl to 0: the text alone can be learned from",
        )


def cut_back(cache: DynamicCache, length: int) -> None:
    """Keep the first `length` positions of a cache."""
    surplus = cache.get_seq_length() - length
    if surplus > 0:
        cache.crop(-surplus)


def _embedding_table(model: PreTrainedModel) -> Tensor:
    table = model.get_input_embeddings().weight
    if not isinstance(table, Tensor):
        raise Refused(
            f"{type(model).__name__} has no embedding table",
            where="target",
            fix="use a causal language model over tokens",
        )
    return table


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise Refused(
        f"no list of {count} decoder layers found in {type(model).__name__}",
        where="target",
        fix="use a decoder-only causal language model",
    )


def _cut(base: nn.Module, layers: nn.ModuleList, *, after: int) -> nn.Module:
    """The base model without the layers after one of them; weights are shared, the model itself is left whole."""
    path = next(name for name, module in base.named_modules() if module is layers)
    return _with(base, path.split("."), nn.ModuleList(list(layers)[: after + 1]))


def _with(module: nn.Module, path: list[str], replacement: nn.Module) -> nn.Module:
    child, *below = path
    shallow = copy.copy(module)
    shallow._modules = dict(module._modules)
    shallow._modules[child] = _with(module.get_submodule(child), below, replacement) if below else replacement
    return shallow
