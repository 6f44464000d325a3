from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.ingest.split import held_out, prompt_hash

HASHES = st.sets(st.integers(0, 2**64 - 1), min_size=2, max_size=50)
FRACTIONS = st.floats(min_value=0, max_value=0.5)


@given(hashes=HASHES, fraction=FRACTIONS.filter(bool))
def test_no_side_is_empty(hashes: set[int], fraction: float) -> None:
    validation = held_out(hashes, fraction)
    assert validation
    assert validation < hashes


@given(hashes=HASHES)
def test_nothing_is_held_out_when_nothing_is_asked_for(hashes: set[int]) -> None:
    assert held_out(hashes, 0.0) == frozenset()


@pytest.mark.parametrize("hashes", [[], [0], [5, 5]])
def test_one_prompt_is_for_training(hashes: list[int]) -> None:
    assert held_out(hashes, 0.5) == frozenset()


def test_prompts_do_not_move_when_others_come() -> None:
    few = {prompt_hash(f"prompt {n}") for n in range(300)}
    many = few | {prompt_hash(f"other {n}") for n in range(3000)}
    assert held_out(few, 0.1) == held_out(many, 0.1) & few
    assert 0.07 < len(held_out(many, 0.1)) / len(many) < 0.13


def test_rounding_moves_one_prompt_over() -> None:
    assert held_out([2**63, 2**63 + 1], 0.01) == {2**63}
    assert held_out([1, 2, 3], 0.5) == {1, 2}


@pytest.mark.parametrize("copy", ["what is 2+2?", "  What  is\n2+2? ", "What is 2+2\uff1f"])
def test_near_copies_stay_together(copy: str) -> None:
    assert prompt_hash(copy) == prompt_hash("What is 2+2?")


def test_other_prompts_do_not() -> None:
    assert prompt_hash("what is 2+3?") != prompt_hash("what is 2+2?")
