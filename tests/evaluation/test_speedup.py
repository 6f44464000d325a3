"""What acceptance is worth in time, against rounds that are added up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.evaluation.speedup import expected_speedup

SECONDS = st.floats(1e-3, 1e3)


@given(rounds=st.lists(st.integers(1, 16), min_size=1, max_size=20), draft=SECONDS, verify=SECONDS, one=SECONDS)
def test_it_is_the_time_without_over_the_time_with(rounds, draft, verify, one):
    without, with_drafter = sum(rounds) * one, len(rounds) * (draft + verify)
    mean = sum(rounds) / len(rounds)
    found = expected_speedup(mean, cost_ratio=draft / one, verification=verify / one)
    assert found == pytest.approx(without / with_drafter, rel=1e-9)


def test_a_free_drafter_is_worth_its_acceptance_length():
    assert expected_speedup(6.3, cost_ratio=0.0) == 6.3
    assert expected_speedup(1.0, cost_ratio=1.0) == 0.5


@pytest.mark.parametrize(
    "wrong", [{"cost_ratio": -0.1}, {"cost_ratio": float("nan")}, {"cost_ratio": 1, "verification": 0}]
)
def test_times_that_cannot_be_are_refused(wrong):
    with pytest.raises(ContractBroken, match="cost ratio"):
        expected_speedup(2.0, **wrong)
