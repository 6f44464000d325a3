"""Attempts of a run: numbered from 1 without gaps, the last one speaking for the run."""

from __future__ import annotations

import pytest

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.results import BucketBoundaries
from dflash_pipeline.contracts.run import Attempt, RunRecord

RUN = RunRecord(run="r", plan="p", target="t", total_steps=12)


def attempt(number: int, status: str = "running", last_step: int = 0) -> Attempt:
    return Attempt(number=number, num_ranks=2, first_step=0, status=status, last_step=last_step)


def test_a_run_that_never_started():
    assert (RUN.status, RUN.next_attempt, RUN.attempts) == ("not started", 1, ())


def test_attempts_add_up():
    run = RUN.with_attempt(attempt(1)).with_attempt(attempt(2, "finished", 12)).with_mlflow_run("m")
    assert (run.status, run.next_attempt, run.mlflow_run_id) == ("finished", 3, "m")
    assert [a.status for a in run.attempts] == ["running", "finished"]
    assert RUN.attempts == ()


def test_an_attempt_takes_the_place_of_the_one_with_its_number():
    run = RUN.with_attempt(attempt(1)).with_attempt(attempt(1, "stopped", 5))
    assert run.attempts == (attempt(1, "stopped", 5),)
    assert run.next_attempt == 2


@pytest.mark.parametrize("numbers", [(2,), (1, 3), (1, 1), (0,)])
def test_gaps_are_refused(numbers):
    with pytest.raises(ContractBroken, match=r"run r: attempt \d stands where attempt \d belongs"):
        RunRecord(run="r", plan="p", target="t", total_steps=1, attempts=tuple(attempt(n) for n in numbers))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_the_efficiency_of_boundaries_is_a_share(share):
    with pytest.raises(ContractBroken, match=r"boundaries of snapshot s: padding efficiency"):
        BucketBoundaries(snapshot="s", boundaries=(1,), padding_efficiency=share)
    assert BucketBoundaries(snapshot="s", boundaries=(1,), padding_efficiency=1.0).padding_efficiency == 1.0
