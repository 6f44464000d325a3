"""speculators' config.json, written and read back; `make oracle` holds it against their own converter and loader."""

from dataclasses import replace

import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.evaluation.speculators_format import (
    Verifier,
    from_speculators_json,
    is_speculators_json,
    to_speculators_json,
    verifier_of,
)
from dflash_pipeline.model.zlab_json import from_zlab_json, to_zlab_json
from tests.tiny_models import TAPS, tiny_config

VERIFIER = Verifier(name_or_path="Qwen/Qwen3-8B", architectures=("Qwen3ForCausalLM",))


def written(**changed):
    return to_speculators_json(tiny_config(), "bfloat16", VERIFIER) | changed


@pytest.mark.parametrize("window", [None, 6])
def test_a_shape_comes_back(window):
    config = tiny_config(window=window)
    raw = to_speculators_json(config, "bfloat16", VERIFIER)
    assert is_speculators_json(raw)
    assert not is_speculators_json(to_zlab_json(config, "bfloat16"))
    assert from_speculators_json(raw) == config
    assert verifier_of(raw) == VERIFIER


def test_what_counts_otherwise_in_this_form():
    raw = written()
    assert raw["aux_hidden_state_layer_ids"] == [tap + 1 for tap in TAPS]
    [proposal] = raw["speculators_config"]["proposal_methods"]
    assert proposal["speculative_tokens"] == tiny_config().block_size - 1
    layers = raw["transformer_layer_config"]
    assert layers["rope_theta"] == layers["rope_parameters"]["rope_theta"] == tiny_config().rope_theta
    assert layers["model_type"] == "qwen3"
    assert not {"architectures", "dflash_config", "block_size", "num_target_layers"} & layers.keys()


def test_without_the_targets_depth_it_is_the_least_that_has_the_taps():
    raw = written()
    del raw["num_target_layers"]
    assert from_speculators_json(raw) == replace(tiny_config(), num_target_layers=TAPS[-1] + 2)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"speculators_model_type": "eagle3"}, "speculators_model_type is 'eagle3'"),
        ({"sample_from_anchor": True}, "sample_from_anchor is True"),
        ({"sliding_window_non_causal": True}, "sliding_window_non_causal is True"),
        ({"target_hidden_size": 32}, "target_hidden_size is 32"),
        ({"draft_vocab_size": 100}, "draft_vocab_size 100 of 211"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids is None"),
        ({"aux_hidden_state_layer_ids": ["2"]}, "aux_hidden_state_layer_ids is"),
        ({"mask_token_id": None}, "mask_token_id is missing"),
        ({"block_size": None}, "block_size is missing"),
        ({"transformer_layer_config": None}, "transformer_layer_config is missing"),
    ],
)
def test_what_is_missing_or_not_computed_here_is_refused_by_name(changed, says):
    with pytest.raises(Refused, match=says):
        from_speculators_json(written(**changed))


@pytest.mark.parametrize("config", [None, {"verifier": {}}, {"verifier": {"name_or_path": "x"}}])
def test_a_form_that_names_no_target_cannot_be_served(config):
    with pytest.raises(Refused, match="no verifier"):
        verifier_of(written(speculators_config=config))


def test_two_block_sizes_that_differ_are_refused():
    raw = to_zlab_json(tiny_config(), "float32")
    with pytest.raises(Refused, match=r"block_size 4 and dflash_config\.block_size 8 differ"):
        from_zlab_json(raw | {"block_size": 4})
    assert from_zlab_json({name: value for name, value in raw.items() if name != "block_size"}) == tiny_config()
