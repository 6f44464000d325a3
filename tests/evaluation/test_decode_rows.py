"""Rows decoded together give what one prompt at a time gives, token for token and round for round."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.evaluation.choice import Choice
from dflash_pipeline.evaluation.decode_rows import Decoding, draft_and_verify_all, greedy_decode_all
from dflash_pipeline.model.config import drafter_config
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.target import FrozenTarget
from tests.model.test_target_families import tiny_experts, tiny_gemma, tiny_phi
from tests.tiny_models import TAPS, strong_drafter, tiny_config, tiny_llama, tiny_model, tiny_target

VOCAB = 6
"""So few tokens that an untrained drafter is right often enough for rounds of every length."""
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def few_tokens(tap_layer_ids: tuple[int, ...] = (0, 2), **shape) -> FrozenTarget:
    torch.manual_seed(0)
    config = Qwen3Config(**{**SHAPE, **shape}, tie_word_embeddings=False)
    return FrozenTarget(Qwen3ForCausalLM(config), tap_layer_ids=tap_layer_ids)


def drafter_of(target: FrozenTarget, *, window: int | None = None, block_size: int = 5) -> Drafter:
    config = drafter_config(
        target.config,
        num_layers=2,
        block_size=block_size,
        tap_layer_ids=target.tap_layer_ids,
        mask_token_id=target.vocab_size - 1,
        intermediate_size=None,
    )
    if window is not None:
        config = replace(config, layer_types=("sliding_attention", "full_attention"), sliding_window=window)
    return strong_drafter(config)


TARGET = few_tokens()
DRAFTERS = {window: drafter_of(TARGET, window=window) for window in (None, 4)}
PROMPTS = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14), min_size=1, max_size=7)


@settings(max_examples=15)
@given(
    prompts=PROMPTS,
    batch_size=st.integers(2, 5),
    max_new_tokens=st.integers(1, 17),
    stop_ids=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
    temperature=st.sampled_from([0.0, 0.8]),
    window=st.sampled_from([None, 4]),
)
def test_together_is_as_one_by_one(prompts, batch_size, max_new_tokens, stop_ids, temperature, window):
    together = Decoding(
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        batch_size=batch_size,
        choice=Choice(temperature=temperature, seed=1),
    )
    one_by_one = replace(together, batch_size=1)
    numbers = [7 * number for number in range(len(prompts))]
    rows = draft_and_verify_all(TARGET, DRAFTERS[window], prompts, together, numbers=numbers)
    assert rows == draft_and_verify_all(TARGET, DRAFTERS[window], prompts, one_by_one, numbers=numbers)
    alone = greedy_decode_all(TARGET, prompts, together)
    assert alone == greedy_decode_all(TARGET, prompts, one_by_one)
    if temperature == 0:
        assert [row.tokens for row in rows] == alone


def test_the_test_above_sees_rounds_of_every_length_and_cut_ones():
    decoding = Decoding(max_new_tokens=40, stop_ids=frozenset(), batch_size=4, choice=Choice(temperature=2.0))
    prompts = [[n % VOCAB, 1] for n in range(12)]
    rows = draft_and_verify_all(TARGET, DRAFTERS[None], prompts, decoding, numbers=range(12))
    assert {length for row in rows for length in row.accepted} == {1, 2, 3, 4, 5}
    assert {row.cut for row in rows} == {True, False}
    assert len({row.tokens for row in rows}) == 12


@pytest.mark.parametrize(
    "make", [tiny_model, tiny_llama, tiny_gemma, tiny_phi, tiny_experts], ids=lambda make: make.__name__
)
def test_targets_of_every_family_decode_rows_of_different_lengths(make):
    target = FrozenTarget(make(), tap_layer_ids=TAPS)
    assert target.decodes_rows
    prompts = [[5, 99, 3, 42, 7], [1], list(range(30)), [8, 8, 8]]
    decoding = Decoding(max_new_tokens=14, stop_ids=frozenset(), batch_size=3)
    one_by_one = greedy_decode_all(target, prompts, replace(decoding, batch_size=1))
    assert greedy_decode_all(target, prompts, decoding) == one_by_one
    config = drafter_config(
        target.config, num_layers=1, block_size=4, tap_layer_ids=TAPS, mask_token_id=210, intermediate_size=None
    )
    rows = draft_and_verify_all(target, strong_drafter(config), prompts, decoding, numbers=range(4))
    assert [row.tokens for row in rows] == one_by_one


def test_targets_whose_rows_would_depend_on_each_other_are_decoded_one_by_one(monkeypatch):
    torch.manual_seed(0)
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    model = LlamaForCausalLM(LlamaConfig(**shape, rope_parameters=rope, max_position_embeddings=8))
    target = FrozenTarget(model, tap_layer_ids=(0, 2))
    assert not target.decodes_rows
    monkeypatch.setattr(FrozenTarget, "decode_rows", None)
    decoding = Decoding(max_new_tokens=12, stop_ids=frozenset(), batch_size=4)
    assert [len(tokens) for tokens in greedy_decode_all(target, [[1, 2, 3], [4]], decoding)] == [12, 12]
    rows = draft_and_verify_all(target, drafter_of(target), [[1, 2, 3], [4]], decoding, numbers=[0, 1])
    assert [len(row.tokens) for row in rows] == [12, 12]


def test_what_cannot_be_decoded_is_refused():
    decoding = Decoding(max_new_tokens=4, stop_ids=frozenset(), batch_size=2)
    with pytest.raises(Refused, match="empty prompt"):
        greedy_decode_all(tiny_target(), [[1], []], decoding)
    with pytest.raises(Refused, match="tapped at"):
        draft_and_verify_all(tiny_target((0, 1, 2)), strong_drafter(tiny_config()), [[1]], decoding, numbers=[0])
    with pytest.raises(ContractBroken, match="batch size 0"):
        replace(decoding, batch_size=0)
