"""Targets of different families give the features a serving engine gives: the outputs of the tap layers, no more work.

`hidden_states[id + 1]` of transformers is the output of layer `id`, as index 0 is the embedding.
"""

import os
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.loading import load_causal_lm
from dflash_pipeline.model.target import FrozenTarget, check_plain_head
from tests.tiny_models import TAPS, tiny_llama, tiny_model

IDS = torch.randint(0, 200, (2, 19), generator=torch.Generator().manual_seed(0))
SHAPE = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.15,
    "pad_token_id": None,
}


def tiny_gemma() -> Gemma3ForCausalLM:
    """Scaled embeddings, and layers of two kinds, each with its own mask and rotary base; the window is felt."""
    torch.manual_seed(0)
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=6, query_pre_attn_scalar=16))


def tiny_phi() -> Phi3ForCausalLM:
    """Queries, keys and values in one matrix."""
    torch.manual_seed(0)
    return Phi3ForCausalLM(Phi3Config(**{name: value for name, value in SHAPE.items() if name != "head_dim"}))


def tiny_experts() -> Qwen3MoeForCausalLM:
    """Routed experts in each layer."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    return Qwen3MoeForCausalLM(config)


FAMILIES = [tiny_model, tiny_llama, tiny_gemma, tiny_phi, tiny_experts]


@pytest.mark.parametrize("make", FAMILIES)
def test_features_are_outputs_of_the_tap_layers(make):
    expected = tap_outputs(make(), IDS, TAPS)
    torch.testing.assert_close(FrozenTarget(make(), tap_layer_ids=TAPS).features(IDS), expected)


@pytest.mark.parametrize("make", FAMILIES)
def test_a_tap_is_none_of_its_neighbours(make):
    """Without this the test above would pass for layers that change nothing."""
    features = FrozenTarget(make(), tap_layer_ids=(3,)).features(IDS)
    for neighbour in (2, 4):
        assert not torch.allclose(features, tap_outputs(make(), IDS, (neighbour,)), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("make", FAMILIES)
def test_the_forward_ends_at_the_last_tap(make):
    model = make()
    target = FrozenTarget(model, tap_layer_ids=TAPS)
    seen = watched(model)
    target.features(IDS)
    assert seen == [0, 1, 2, 3, 4, 5]
    with torch.no_grad():
        model(IDS)
    assert seen == [0, 1, 2, 3, 4, 5, *range(8), "head"]


@pytest.mark.slow
def test_a_real_target_gives_its_tap_outputs_and_stops(real_target):
    model = load_causal_lm(real_target)
    taps = (1, 14, len(model.base_model.layers) - 3)
    ids = AutoTokenizer.from_pretrained(real_target)("The quick brown fox jumps. " * 8, return_tensors="pt").input_ids
    expected = tap_outputs(model, ids, taps)
    target = FrozenTarget(model, tap_layer_ids=taps)
    seen = watched(model)
    torch.testing.assert_close(target.features(ids), expected)
    assert seen == list(range(taps[-1] + 1))


@pytest.fixture
def real_target() -> Path:
    """SmolLM2-135M, 30 layers of Llama: in the folder that DFLASH_REAL_TARGET names, or beside the project."""
    beside = Path(__file__).parents[3] / "shared" / "models" / "SmolLM2-135M"
    folder = Path(os.environ.get("DFLASH_REAL_TARGET", beside))
    if not (folder / "config.json").is_file():
        pytest.skip("no real target: let DFLASH_REAL_TARGET name a folder with SmolLM2-135M as safetensors")
    return folder


def tap_outputs(model: PreTrainedModel, ids: torch.Tensor, taps: tuple[int, ...]) -> torch.Tensor:
    """The whole forward by transformers, and the states it says it went through."""
    with torch.no_grad():
        states = model.eval()(ids, output_hidden_states=True).hidden_states
    return torch.cat([states[tap + 1] for tap in taps], dim=-1)


def watched(model: PreTrainedModel) -> list[int | str]:
    """What runs, in order: numbers of layers, and `head` when logits are computed."""
    seen: list[int | str] = []
    for number, layer in enumerate(model.base_model.layers):
        layer.register_forward_hook(lambda *_, number=number: seen.append(number))
    model.get_output_embeddings().register_forward_hook(lambda *_: seen.append("head"))
    return seen


def test_a_target_that_bends_its_logits_is_no_teacher():
    plain = tiny_model().config
    check_plain_head(plain, where="training.kl")
    capped = Gemma3TextConfig(**SHAPE, final_logit_softcapping=30.0)
    with pytest.raises(Refused, match=r"training\.kl: .*final_logit_softcapping.*set training\.kl to 0"):
        check_plain_head(capped, where="training.kl")
