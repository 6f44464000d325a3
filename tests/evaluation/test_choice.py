"""What comes out of rejection sampling is distributed as the target alone: slot by slot exactly, and in whole texts."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.evaluation import choice
from dflash_pipeline.evaluation.choice import Choice, Turn, draft_tokens, kept, remainder, verified
from dflash_pipeline.evaluation.decode_rows import Decoding, draft_and_verify_all
from tests.evaluation.test_decode_rows import drafter_of, few_tokens

CHANCES = st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda values: sum(values) > 0.01)
GRID = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000


def normed(values) -> torch.Tensor:
    tensor = torch.tensor(values, dtype=torch.float64)
    return tensor / tensor.sum()


@given(target=CHANCES, draft=CHANCES)
def test_kept_and_drawn_anew_make_the_targets_distribution(target, draft):
    """Over all of a vocabulary: q(x) * P(x is kept) + P(nothing is kept) * remainder(x) = p(x)."""
    p, q = normed(target), normed(draft)
    tokens = torch.arange(4).repeat_interleave(GRID.numel())[None]
    rows = kept(tokens, p.expand(1, tokens.shape[1], 4), q.expand(1, tokens.shape[1], 4), GRID.repeat(4)[None])
    chance_of_keeping = rows.view(4, -1).double().mean(-1)
    refused = 1 - (q * chance_of_keeping).sum()
    left = remainder(p[None], q[None])[0]
    torch.testing.assert_close(q * chance_of_keeping + refused * left / left.sum(), p, atol=1e-3, rtol=0)


@given(weights=CHANCES)
def test_tokens_are_drawn_by_their_weight(weights):
    p = normed(weights)
    drawn = choice._drawn(p.expand(GRID.numel(), 4) * 3, GRID)
    torch.testing.assert_close(torch.bincount(drawn, minlength=4) / GRID.numel(), p.float(), atol=1e-3, rtol=0)


def test_draws_are_even_and_differ_by_prompt_round_slot_and_use():
    turn = Turn(prompts=np.repeat(np.arange(50), 40), rounds=np.tile(np.arange(40), 50))
    draws = [
        choice._uniforms(Choice(temperature=1.0, seed=s), turn, num_slots=3, use=u) for s in (0, 1) for u in (0, 1)
    ]
    everything = torch.cat([draw.flatten() for draw in draws])
    assert everything.unique().numel() == everything.numel()
    counts = torch.histc(everything.float(), 20, 0, 1)
    assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 43.8  # chi-square of 19, once in a thousand
    again = choice._uniforms(Choice(temperature=1.0), turn, num_slots=3, use=0)
    assert torch.equal(draws[0], again)


def test_a_whole_draft_is_followed_by_the_targets_own_distribution():
    """Nothing was refused there, so that nothing is taken off."""
    rows = 3000
    logits = torch.tensor([0.0, 1.0, 2.0]).repeat(rows, 2, 1)
    draft = logits[:, :1]
    turn = Turn(prompts=np.arange(rows), rounds=np.ones(rows, dtype=np.int64))
    verdict = verified(draft_tokens(draft, Choice(temperature=1.0), turn), draft, logits, Choice(temperature=1.0), turn)
    assert int(verdict.agreed.min()) == 1
    shares = torch.bincount(verdict.following, minlength=3) / rows
    torch.testing.assert_close(shares, logits[0, 0].softmax(-1), atol=0.03, rtol=0)


PROMPT, TEMPERATURE, TEXTS = (1, 0, 2), 2.5, 1000
CELLS = list(itertools.product(range(3), repeat=3))


@pytest.fixture(scope="module")
def pair():
    """A target of three tokens, and a drafter that is often right and often wrong."""
    target = few_tokens(vocab_size=3, num_hidden_layers=3, tap_layer_ids=(0, 1))
    return target, drafter_of(target, block_size=3)


def distance_from_the_target(pair) -> float:
    """Chi-square of texts of three tokens against the chances that the target gives them, token by token."""
    target, drafter = pair
    decoding = Decoding(
        max_new_tokens=3, stop_ids=frozenset(), batch_size=200, choice=Choice(temperature=TEMPERATURE, seed=5)
    )
    rows = draft_and_verify_all(target, drafter, [PROMPT] * TEXTS, decoding, numbers=range(TEXTS))
    counts = Counter(row.tokens for row in rows)
    return sum(
        (counts[text] - expected) ** 2 / expected for text in CELLS if (expected := TEXTS * chance(target, text))
    )


def chance(target, text) -> float:
    logits, _ = target.decode_step(torch.tensor([*PROMPT, *text[:-1]]), target.new_cache(), num_logits=len(text))
    chances = (logits.double() / TEMPERATURE).softmax(-1)
    return float(np.prod([float(chances[i, token]) for i, token in enumerate(text)]))


def test_texts_are_distributed_as_the_targets(pair):
    assert min(TEXTS * chance(pair[0], text) for text in CELLS) > 3
    assert distance_from_the_target(pair) < 54.1  # chi-square of 26, once in a thousand


@pytest.mark.parametrize("wrong", ["all is kept", "what was refused is not taken off", "one draw for all"])
def test_the_test_above_sees_a_wrong_rule(pair, monkeypatch, wrong):
    if wrong == "all is kept":
        monkeypatch.setattr(choice, "kept", lambda drafted, *_: torch.ones_like(drafted, dtype=torch.bool))
    elif wrong == "what was refused is not taken off":
        monkeypatch.setattr(choice, "remainder", lambda target, draft: target)
    else:
        monkeypatch.setattr(choice, "_KEEP", choice._DRAFT)
    assert distance_from_the_target(pair) > 80


def test_a_temperature_below_zero_is_refused():
    with pytest.raises(ContractBroken, match="temperature -1"):
        Choice(temperature=-1.0)
