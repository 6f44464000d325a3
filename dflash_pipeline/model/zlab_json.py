"""A drafter's files in z-lab's form, which their loader, SGLang and vLLM read: config.json, tensor names. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.config import FULL, SLIDING, DrafterConfig

_ARCHITECTURE = "DFlashDraftModel"
_WHERE = "drafter config.json"


def to_zlab_json(config: DrafterConfig, dtype: str) -> dict[str, Any]:
    """The config.json that z-lab's loader, SGLang and vLLM read. What has two customary places is written in both."""
    slides = SLIDING in config.layer_types
    return {
        "architectures": [_ARCHITECTURE],
        "model_type": "qwen3",
        "dtype": dtype,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "rope_scaling": None,
        "max_position_embeddings": config.max_position_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_cache": True,
        "layer_types": list(config.layer_types),
        "use_sliding_window": slides,
        "sliding_window": config.sliding_window,
        "max_window_layers": config.layer_types.index(SLIDING) if slides else config.num_layers,
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "dflash_config": {
            "target_layer_ids": list(config.tap_layer_ids),
            "mask_token_id": config.mask_token_id,
            "block_size": config.block_size,
        },
    }


def from_zlab_json(raw: Mapping[str, Any]) -> DrafterConfig:
    """Read a z-lab config.json; whatever would have to be guessed, or is not computed here, is refused by name."""
    _refuse_what_differs(raw)
    dflash = raw.get("dflash_config") or {}
    num_layers = _needed(raw, "num_hidden_layers")
    slides = raw.get("layer_types") and SLIDING in raw["layer_types"]
    return DrafterConfig(
        hidden_size=_needed(raw, "hidden_size"),
        intermediate_size=_needed(raw, "intermediate_size"),
        num_layers=num_layers,
        num_heads=_needed(raw, "num_attention_heads"),
        num_kv_heads=_needed(raw, "num_key_value_heads"),
        head_dim=_needed(raw, "head_dim"),
        vocab_size=_needed(raw, "vocab_size"),
        rms_norm_eps=_needed(raw, "rms_norm_eps"),
        rope_theta=_drafter_rope_theta(raw),
        max_position_embeddings=_needed(raw, "max_position_embeddings"),
        block_size=_block_size(raw, dflash),
        tap_layer_ids=tuple(_needed(dflash, "target_layer_ids", inside="dflash_config.")),
        mask_token_id=_needed(dflash, "mask_token_id", inside="dflash_config."),
        num_target_layers=_needed(raw, "num_target_layers"),
        layer_types=tuple(raw.get("layer_types") or (FULL,) * num_layers),
        sliding_window=raw.get("sliding_window") if slides else None,
    )


def zlab_tensor_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a drafter's model.safetensors and its shape: three of its own and eleven a layer, no other."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head, config.num_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(config.tap_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for i in range(config.num_layers):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _needed(raw: Mapping[str, Any], key: str, *, inside: str = "") -> Any:
    value = raw.get(key)
    if value is None:
        raise Refused(f"{inside}{key} is missing", where=_WHERE, fix="export the drafter again; it is never guessed")
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, bool) or not isinstance(part, int | float):
            raise Refused(f"{inside}{key} is {value!r}", where=_WHERE, fix="a number belongs there; export it again")
    return value


def _refuse_what_differs(raw: Mapping[str, Any]) -> None:
    dflash = raw.get("dflash_config") or {}
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kinds: tuple[tuple[str, Any, Any], ...] = (
        ("architectures", raw.get("architectures"), [_ARCHITECTURE]),
        ("hidden_act", raw.get("hidden_act"), "silu"),
        ("attention_bias", raw.get("attention_bias"), False),
        ("rope_type", rope.get("rope_type") or rope.get("type"), "default"),
        ("is_causal", raw.get("is_causal"), None),
        ("dflash_config.causal", dflash.get("causal"), None),
    )
    for name, value, supported in kinds:
        if value is not None and value != supported:
            raise Refused(
                f"{name} is {value!r}", where=_WHERE, fix=f"only {supported!r} is computed here; use another loader"
            )


def _block_size(raw: Mapping[str, Any], dflash: Mapping[str, Any]) -> int:
    """At the top or inside. Loaders do not agree which of two wins, so two that differ are refused."""
    nested, top = dflash.get("block_size"), raw.get("block_size")
    if nested is not None and top is not None and nested != top:
        raise Refused(
            f"block_size {top} and dflash_config.block_size {nested} differ",
            where=_WHERE,
            fix="export the drafter again",
        )
    return int(_needed(raw, "block_size") if nested is None else _needed(dflash, "block_size", inside="dflash_config."))


def _drafter_rope_theta(raw: Mapping[str, Any]) -> float:
    nested = (raw.get("rope_parameters") or {}).get("rope_theta")
    top = raw.get("rope_theta")
    if nested is not None and top is not None and nested != top:
        raise Refused(
            f"rope_theta {top} and rope_parameters.rope_theta {nested} differ",
            where=_WHERE,
            fix="export the drafter again",
        )
    return float(nested if nested is not None else _needed(raw, "rope_theta"))
