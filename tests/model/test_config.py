"""A drafter read with a guessed shape loads and drafts badly: everything is checked, nothing is guessed."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from transformers import AutoConfig, LlamaConfig

from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.model.config import default_mask_token_id, default_tap_layer_ids, drafter_config
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.zlab_json import from_zlab_json, to_zlab_json, zlab_tensor_shapes
from tests.tiny_models import TAPS, tiny_config


@pytest.mark.parametrize(
    ("target_layers", "layers", "taps"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (64, 5, (1, 16, 31, 46, 61)),
        (36, 1, (18,)),
        (30, 3, (1, 14, 27)),
        (8, 5, (1, 2, 3, 4, 5)),
    ],
)
def test_default_taps_are_those_of_published_drafters(target_layers, layers, taps):
    assert default_tap_layer_ids(target_layers, layers) == taps


@pytest.mark.parametrize(
    ("target_layers", "layers", "proposed"),
    [
        (4, 3, [0, 1, 2]),
        (4, 5, [0, 1, 2]),
        (7, 5, [0, 1, 2, 4, 5]),
        (6, 4, [0, 1, 3, 4]),
        (3, 2, [0, 1]),
        (2, 5, [0]),
        (2, 1, [0]),
    ],
)
def test_a_shallow_target_needs_its_taps_set_and_some_are_proposed(target_layers, layers, proposed):
    with pytest.raises(Refused) as refused:
        default_tap_layer_ids(target_layers, layers)
    assert f"set tap_layer_ids to {proposed}, or to others from 0 to {target_layers - 2}" in refused.value.fix


def ruled_or_proposed(target_layers: int, layers: int) -> tuple[tuple[int, ...], str]:
    """The taps of the rule, or those that its refusal proposes and what that says to do."""
    try:
        return default_tap_layer_ids(target_layers, layers), ""
    except Refused as refusal:
        listed = re.search(r"set tap_layer_ids to \[(.*?)\]", refusal.fix)
        return tuple(int(tap) for tap in listed[1].split(",")) if listed else (), refusal.fix


@pytest.mark.parametrize("layers", range(1, 12))
@pytest.mark.parametrize("target_layers", range(1, 20))
def test_taps_by_rule_or_proposal_are_distinct_layers_of_the_target(target_layers, layers):
    taps, fix = ruled_or_proposed(target_layers, layers)
    if target_layers == 1:
        assert "deeper target" in fix
        return
    if fix:
        assert len(taps) == min(layers, target_layers - 1)
    assert sorted(set(taps)) == list(taps)
    assert 0 <= taps[0] <= taps[-1] <= target_layers - 2


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tap_layer_ids": (3, 1)}, "ascending"),
        ({"tap_layer_ids": (1, 1)}, "ascending"),
        ({"tap_layer_ids": ()}, "tap layers"),
        ({"tap_layer_ids": (1, 7)}, "last layer cannot be tapped"),
        ({"tap_layer_ids": (-1, 2)}, "0 to 6"),
        ({"mask_token_id": 211}, "mask token 211"),
        ({"block_size": 1}, "drafts nothing"),
        ({"block_size": 400_000}, "fits into the target"),
        ({"num_kv_heads": 3}, "do not divide"),
        ({"head_dim": 15}, "odd"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"layer_types": ("full_attention",)}, "2 layers"),
        ({"layer_types": ("full_attention", "linear")}, "linear"),
        ({"layer_types": ("full_attention", "sliding_attention")}, "window"),
    ],
)
def test_a_false_config_is_refused_at_construction(changed, says):
    with pytest.raises(ContractBroken, match=says):
        replace(tiny_config(), **changed)


def test_the_last_layer_but_one_may_be_tapped():
    assert replace(tiny_config(), tap_layer_ids=(0, 6)).tap_layer_ids == (0, 6)


def test_shape_follows_the_target():
    config = tiny_config()
    assert (config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim) == (64, 4, 2, 16)
    assert (config.intermediate_size, config.rope_theta, config.vocab_size) == (96, 50_000.0, 211)
    assert (config.num_target_layers, config.tap_layer_ids) == (8, TAPS)


def test_a_target_without_head_dim_or_taps():
    target = LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=12, vocab_size=99, rope_theta=7e5)
    config = drafter_config(
        target, num_layers=3, block_size=4, tap_layer_ids=None, mask_token_id=9, intermediate_size=33
    )
    assert (config.head_dim, config.num_kv_heads, config.intermediate_size) == (16, 4, 33)
    assert config.tap_layer_ids == (1, 5, 9)
    assert config.rope_theta == 7e5


@pytest.mark.parametrize("config", [tiny_config(), tiny_config(window=12), tiny_config(num_layers=3, block_size=16)])
def test_config_json_comes_back_as_it_went(config):
    assert from_zlab_json(to_zlab_json(config, "bfloat16")) == config


def test_config_json_holds_both_places_of_what_has_two():
    raw = to_zlab_json(tiny_config(), "float32")
    assert raw["rope_theta"] == raw["rope_parameters"]["rope_theta"] == 50_000.0
    assert raw["block_size"] == raw["dflash_config"]["block_size"] == 8
    assert raw["num_target_layers"] == 8
    assert raw["dflash_config"]["target_layer_ids"] == [1, 3, 5]
    assert raw["architectures"] == ["DFlashDraftModel"]


@pytest.mark.parametrize("key", ["num_target_layers", "head_dim", "rms_norm_eps", "num_hidden_layers"])
def test_a_missing_key_is_refused_by_name(key):
    raw = to_zlab_json(tiny_config(), "float32")
    del raw[key]
    with pytest.raises(Refused, match=key):
        from_zlab_json(raw)


@pytest.mark.parametrize("key", ["target_layer_ids", "mask_token_id"])
def test_taps_and_mask_token_are_never_guessed(key):
    raw = to_zlab_json(tiny_config(), "float32")
    del raw["dflash_config"][key]
    with pytest.raises(Refused, match=key):
        from_zlab_json(raw)


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_theta": 1e4},
        {"rope_parameters": {"rope_theta": 5e4, "rope_type": "yarn"}},
        {"attention_bias": True},
        {"architectures": ["DFlash2DraftModel"]},
        {"is_causal": True},
        {"hidden_size": "64"},
    ],
)
def test_what_would_be_computed_otherwise_is_refused(changed):
    with pytest.raises(Refused):
        from_zlab_json(to_zlab_json(tiny_config(), "float32") | changed)


def test_older_files_with_one_place_only_are_read():
    config = tiny_config()
    raw = to_zlab_json(config, "float32")
    del raw["rope_parameters"], raw["block_size"], raw["layer_types"]
    assert from_zlab_json(raw) == config


@pytest.mark.parametrize("layers", [1, 3])
def test_tensor_names_and_shapes_are_z_labs(layers):
    config = tiny_config(num_layers=layers)
    state = Drafter(config).state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == zlab_tensor_shapes(config)
    assert len(state) == 3 + 11 * layers
    assert {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.0.self_attn.q_norm.weight"} <= state.keys()


@pytest.mark.parametrize(
    ("mask", "size", "vocab", "chosen"), [(7, 100, 128, 7), (None, 100, 128, 100), (130, 100, 128, 100)]
)
def test_mask_token_is_the_tokenizers_or_the_first_unused_row(mask, size, vocab, chosen):
    tokenizer = SimpleNamespace(mask_token_id=mask, get_vocab=lambda: {str(i): i for i in range(size)})
    assert default_mask_token_id(tokenizer, vocab) == chosen


def test_without_an_unused_row_the_mask_token_must_be_set():
    tokenizer = SimpleNamespace(mask_token_id=None, get_vocab=lambda: {str(i): i for i in range(128)})
    with pytest.raises(Refused, match="set mask_token_id"):
        default_mask_token_id(tokenizer, 128)


def test_the_example_target_gives_a_config(example_target):
    config = drafter_config(
        AutoConfig.from_pretrained(example_target),
        num_layers=3,
        block_size=8,
        tap_layer_ids=(0, 1, 2),
        mask_token_id=3,
        intermediate_size=None,
    )
    assert (config.hidden_size, config.num_target_layers) == (128, 4)
