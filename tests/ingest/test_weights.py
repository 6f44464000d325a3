"""A weight is an expected number of copies, and which ids have one more follows from the id alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.ingest.weights import copies

IDS = st.text(min_size=1, max_size=20).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
WEIGHTS = st.floats(min_value=0, max_value=100, exclude_min=True)
MANY = [f"conversation {n}" for n in range(10_000)]


@given(conversation_id=IDS, one=WEIGHTS, other=WEIGHTS)
def test_a_larger_weight_never_gives_fewer(conversation_id: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert copies(conversation_id, low) <= copies(conversation_id, high)


@given(conversation_id=IDS, weight=WEIGHTS)
def test_copies_are_the_weight_rounded_down_or_up(conversation_id: str, weight: float) -> None:
    assert copies(conversation_id, weight) in (math.floor(weight), math.ceil(weight))


@given(conversation_id=IDS, weight=st.integers(1, 100))
def test_a_whole_weight_is_a_number_of_copies(conversation_id: str, weight: int) -> None:
    assert copies(conversation_id, float(weight)) == weight


@pytest.mark.parametrize("weight", [0.01, 0.25, 0.5, 0.99, 1.5, 2.5, 99.9])
def test_the_mean_number_of_copies_is_the_weight(weight: float) -> None:
    found = [copies(one, weight) for one in MANY]
    share = weight % 1
    # Four standard deviations: ids are as good as drawn.
    assert abs(sum(found) / len(MANY) - weight) < 4 * math.sqrt(share * (1 - share) / len(MANY))
    assert set(found) == {math.floor(weight), math.ceil(weight)}


def test_a_quarter_is_part_of_a_half_and_of_what_stands_once_more() -> None:
    quarter, half, more = ({one for one in MANY if copies(one, w) > w - w % 1} for w in (0.25, 0.5, 7.5))
    assert quarter < half == more


@pytest.mark.parametrize(
    ("conversation_id", "expected"),
    [
        ("id0", [0, 0, 1, 1, 1, 3, 100]),
        ("id1", [0, 0, 0, 1, 1, 2, 100]),
        ("ünïcode", [0, 0, 1, 1, 1, 3, 100]),
        ("id3", [1, 1, 1, 1, 2, 3, 100]),
        ("id8", [0, 1, 1, 1, 2, 3, 100]),
    ],
)
def test_copies_are_the_same_on_every_machine(conversation_id: str, expected: list[int]) -> None:
    weights = (0.25, 0.5, 0.75, 1.0, 1.5, 2.75, 100.0)
    assert [copies(conversation_id, weight) for weight in weights] == expected
