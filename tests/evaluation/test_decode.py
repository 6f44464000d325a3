"""Draft-and-verify must give the target's own tokens whatever the drafter proposes."""

import pytest
import torch

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.evaluation.decode import draft_and_verify, greedy_decode
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.target import FrozenTarget
from tests.tiny_models import TAPS, strong_drafter, tiny_config, tiny_llama, tiny_model, tiny_target

PROMPT = [5, 99, 3, 42, 7]
NEVER = frozenset()


class Oracle(Drafter):
    """Proposes a known text, right for as many slots as told: what acceptance must then be is known too."""

    def __init__(self, text, *, right):
        super().__init__(tiny_config())
        self.text, self.right, self.starts = text, right, []

    def draft(self, features_SF, block_embeddings_KH, cache):
        cache.length += features_SF.shape[0]
        self.starts.append(cache.length)
        wanted = torch.zeros(8, 211)
        for slot in range(1, 8):
            at = cache.length + slot
            token = self.text[at] if at < len(self.text) else 0
            wanted[slot, token if slot <= self.right else (token + 1) % 211] = 1.0
        return wanted


class OracleTarget(FrozenTarget):
    """Its head hands through what the oracle proposes."""

    def logits(self, hidden):
        return hidden if hidden.shape[-1] == 211 else super().logits(hidden)


@pytest.mark.parametrize("make", [tiny_model, tiny_llama])
@pytest.mark.parametrize("window", [None, 6])
def test_tokens_equal_those_of_the_target_alone(make, window):
    target = FrozenTarget(make(), tap_layer_ids=TAPS)
    drafter = strong_drafter(tiny_config(window=window))
    for prompt in (PROMPT, [1], list(range(40))):
        alone = greedy_decode(target, prompt, max_new_tokens=30, stop_ids=NEVER)
        decoded = draft_and_verify(target, drafter, prompt, max_new_tokens=30, stop_ids=NEVER)
        assert decoded.tokens == tuple(alone)
        assert len(alone) == 30


def test_greedy_equals_transformers_own():
    model = tiny_model()
    ids = torch.tensor([PROMPT])
    model.generation_config.eos_token_id = None
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    ours = greedy_decode(tiny_target(), PROMPT, max_new_tokens=20, stop_ids=NEVER)
    assert ours == theirs[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("right", [0, 1, 3, 7])
def test_acceptance_is_what_the_drafter_deserves(right):
    target = OracleTarget(tiny_model(), tap_layer_ids=TAPS)
    alone = greedy_decode(target, PROMPT, max_new_tokens=64, stop_ids=NEVER)
    oracle = Oracle(PROMPT + alone, right=right)
    decoded = draft_and_verify(target, oracle, PROMPT, max_new_tokens=33, stop_ids=NEVER)
    assert decoded.tokens == tuple(alone[:33])
    assert not decoded.cut
    assert set(decoded.accepted) == {right + 1}
    assert sum(decoded.accepted) == 32
    # The block always starts right after the context, at the last token that is not verified yet.
    assert oracle.starts == [len(PROMPT) + n * (right + 1) for n in range(len(decoded.accepted))]


@pytest.mark.parametrize("right", [0, 7])
def test_a_stop_token_ends_the_answer_with_itself(right):
    target = OracleTarget(tiny_model(), tap_layer_ids=TAPS)
    alone = greedy_decode(target, PROMPT, max_new_tokens=64, stop_ids=NEVER)
    stop = next(token for token in alone[5:] if alone.index(token) >= 5)
    short = greedy_decode(target, PROMPT, max_new_tokens=64, stop_ids={stop})
    oracle = Oracle(PROMPT + alone, right=right)
    decoded = draft_and_verify(target, oracle, PROMPT, max_new_tokens=64, stop_ids={stop})
    assert decoded.tokens == tuple(short) == tuple(alone[: alone.index(stop) + 1])
    assert sum(decoded.accepted) == len(short) - 1
    # A stop token that the target gives itself ends a whole round; among drafted ones it cuts what would have followed.
    assert decoded.cut == (right == 7)


def test_the_last_round_is_cut_where_the_answer_ends():
    target = OracleTarget(tiny_model(), tap_layer_ids=TAPS)
    alone = greedy_decode(target, PROMPT, max_new_tokens=64, stop_ids=NEVER)
    decoded = draft_and_verify(target, Oracle(PROMPT + alone, right=7), PROMPT, max_new_tokens=20, stop_ids=NEVER)
    assert decoded.tokens == tuple(alone[:20])
    assert decoded.accepted == (8, 8, 3)
    assert decoded.cut


def test_one_token_needs_no_round():
    target, drafter = tiny_target(), strong_drafter(tiny_config())
    decoded = draft_and_verify(target, drafter, PROMPT, max_new_tokens=1, stop_ids=NEVER)
    assert (len(decoded.tokens), decoded.accepted, decoded.cut) == (1, (), False)


def test_other_taps_and_empty_prompts_are_refused():
    drafter = strong_drafter(tiny_config())
    with pytest.raises(Refused, match="tapped at"):
        draft_and_verify(tiny_target((0, 1, 2)), drafter, PROMPT, max_new_tokens=4, stop_ids=NEVER)
    with pytest.raises(Refused, match="empty prompt"):
        greedy_decode(tiny_target(), [], max_new_tokens=4, stop_ids=NEVER)
