"""A drafter's config.json in speculators' form, which vLLM serves by `vllm serve DIR`. Tensors are z-lab's. No torch.

The form is that of speculators 0.9.0. Its numbers of tapped layers count the embedding as 0, so they are one more than
z-lab's. It says nothing of the target's depth: that is written beside, where their loaders look for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.zlab_json import from_zlab_json, to_zlab_json

SPECULATORS_VERSION = "0.9.0"
_MODEL_TYPE, _ARCHITECTURE = "dflash", "DFlashDraftModel"
_NOT_OF_THE_LAYERS = ("architectures", "block_size", "num_target_layers", "dflash_config")
_WHERE = "drafter config.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verifier:
    """The target, as a server finds it."""

    name_or_path: str
    """An id of the Hugging Face hub, or a folder; vLLM loads it beside the drafter."""
    architectures: tuple[str, ...]


def to_speculators_json(config: DrafterConfig, dtype: str, verifier: Verifier) -> dict[str, Any]:
    """The config.json that speculators' `DFlashDraftModel` and vLLM's adapter for it read."""
    zlab = to_zlab_json(config, dtype)
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": config.block_size - 1,
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    return {
        "architectures": [_ARCHITECTURE],
        "speculators_model_type": _MODEL_TYPE,
        "speculators_version": SPECULATORS_VERSION,
        "dtype": dtype,
        "block_size": config.block_size,
        "draft_vocab_size": config.vocab_size,
        "mask_token_id": config.mask_token_id,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in config.tap_layer_ids],
        "num_target_layers": config.num_target_layers,
        "sample_from_anchor": False,
        "sliding_window_non_causal": False,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": _MODEL_TYPE,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier.name_or_path, "architectures": list(verifier.architectures)},
        },
        "transformer_layer_config": {name: value for name, value in zlab.items() if name not in _NOT_OF_THE_LAYERS},
    }


def is_speculators_json(raw: Mapping[str, Any]) -> bool:
    return "speculators_model_type" in raw


def from_speculators_json(raw: Mapping[str, Any]) -> DrafterConfig:
    """Read a speculators config.json; what would have to be guessed, or is not computed here, is refused by name.

    Their own converter leaves the target's depth out: then it counts as the least that has the tapped layers.
    """
    _refuse_what_differs(raw)
    taps = raw.get("aux_hidden_state_layer_ids")
    if not isinstance(taps, list) or not all(isinstance(tap, int) and not isinstance(tap, bool) for tap in taps):
        raise Refused(
            f"aux_hidden_state_layer_ids is {taps!r}", where=_WHERE, fix="numbers of layers belong there; export again"
        )
    depth = raw.get("num_target_layers", max(taps, default=0) + 1)
    config = from_zlab_json(
        {
            **raw["transformer_layer_config"],
            "architectures": [_ARCHITECTURE],
            "block_size": raw.get("block_size"),
            "num_target_layers": depth,
            "dflash_config": {
                "target_layer_ids": [tap - 1 for tap in taps],
                "mask_token_id": raw.get("mask_token_id"),
            },
        }
    )
    if raw.get("draft_vocab_size") != config.vocab_size:
        raise Refused(
            f"draft_vocab_size {raw.get('draft_vocab_size')} of {config.vocab_size} tokens",
            where=_WHERE,
            fix="only drafters of the target's whole vocabulary are computed here; use another loader",
        )
    return config


def verifier_of(raw: Mapping[str, Any]) -> Verifier:
    """The target that a speculators config.json names."""
    given = (raw.get("speculators_config") or {}).get("verifier") or {}
    name, kinds = given.get("name_or_path"), given.get("architectures")
    if not isinstance(name, str) or not name or not isinstance(kinds, list):
        raise Refused("no verifier is named", where=_WHERE, fix="export the drafter again: vLLM needs it to serve")
    return Verifier(name_or_path=name, architectures=tuple(str(kind) for kind in kinds))


def _refuse_what_differs(raw: Mapping[str, Any]) -> None:
    kinds = (
        ("speculators_model_type", _MODEL_TYPE),
        ("sample_from_anchor", False),
        ("sliding_window_non_causal", False),
        ("target_hidden_size", None),
    )
    for name, supported in kinds:
        if raw.get(name, supported) != supported:
            raise Refused(
                f"{name} is {raw[name]!r}", where=_WHERE, fix=f"only {supported!r} is computed here; use another loader"
            )
    if not isinstance(raw.get("transformer_layer_config"), dict):
        raise Refused("transformer_layer_config is missing", where=_WHERE, fix="export the drafter again")
