"""When a tick starts a training: never beside another one, never twice for the same inputs, again after a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.retraining import EarlierPass, Patience, Watched, decide, decide_soon

PATIENCE = Patience(retries=2, first_wait_seconds=900)
SETTLED = Watched(digest="new", since=0.0)


def earlier(state: str, *, inputs: str | None = "new", at: float = 1000.0, run_id: str = "0123456789") -> EarlierPass:
    return EarlierPass(run_id=run_id, inputs=inputs, state=state, at=at)


def soon(*passes: EarlierPass, now: float = 1000.0, watched: Watched = SETTLED):
    return decide_soon(passes, watched, now=now, settle_seconds=600, patience=PATIENCE)


def test_the_first_run_starts():
    assert decide([], "new").start
    assert soon().start


@pytest.mark.parametrize("inputs", ["new", "old", None])
def test_never_two_at_once_whatever_the_other_is_for(inputs):
    passes = [earlier("failed"), earlier("unfinished", inputs=inputs, run_id="abcdef0123")]
    for decision in (decide(passes, "new"), soon(*passes)):
        assert not decision.start
        assert "run abcdef01 is still going on" in decision.reason


def test_what_is_trained_is_not_trained_again():
    for decision in (decide([earlier("succeeded")], "new"), soon(earlier("succeeded"))):
        assert not decision.start
        assert "already" in decision.reason
    assert decide([earlier("succeeded", inputs="old")], "new").start
    assert decide([earlier("succeeded", inputs=None)], "new").start, "nobody knows what that run was for"


def test_a_success_before_other_inputs_still_counts_but_a_later_failure_is_tried_again():
    back_again = [earlier("succeeded", inputs="other"), earlier("succeeded")]
    assert not decide(back_again, "new").start
    assert decide([earlier("failed"), earlier("succeeded")], "new").start


def test_the_clock_tries_a_failed_or_canceled_run_again():
    assert decide([earlier("failed")], "new").start
    assert decide([earlier("canceled")], "new").start


def test_the_sensor_waits_until_nothing_changes():
    fresh = Watched(digest="new", since=500.0)
    assert not soon(now=1099.0, watched=fresh).start
    assert soon(now=1100.0, watched=fresh).start


def test_changes_start_the_wait_anew():
    seen = Watched(digest="a", since=0.0)
    assert seen.seen_again("a", 50.0) == seen
    assert seen.seen_again("b", 50.0) == Watched(digest="b", since=50.0)


def test_the_sensor_leaves_a_canceled_run_to_a_person():
    assert "canceled" in soon(earlier("canceled"), now=1e6).reason


def test_waits_double_and_end():
    first = [earlier("failed", at=1000.0)]
    assert not soon(*first, now=1899.0).start
    assert soon(*first, now=1900.0).start
    second = [earlier("failed", at=5000.0), *first]
    assert not soon(*second, now=6799.0).start
    assert soon(*second, now=6800.0).start
    third = [earlier("failed", at=9000.0), *second]
    assert "3 runs with these inputs failed" in soon(*third, now=1e9).reason


def test_failures_with_other_inputs_do_not_count():
    others = [earlier("failed", inputs="old", at=999.0)] * 9
    assert soon(*others, now=1000.0).start


states = st.sampled_from(["unfinished", "succeeded", "failed", "canceled"])
passes = st.lists(st.builds(earlier, states, inputs=st.sampled_from(["new", "old", None]), at=st.floats(0, 1e6)))


@given(passes, st.floats(0, 2e6))
def test_the_sensor_never_starts_what_the_clock_would_not(history, now):
    if soon(*history, now=now).start:
        assert decide(history, "new").start
        assert not any(p.state == "unfinished" for p in history)


@given(passes)
def test_after_a_success_nothing_more_is_started(history):
    assert not decide([earlier("succeeded"), *history], "new").start


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"first_wait_seconds": -1.0}, {"first_wait_seconds": float("nan")}])
def test_patience_has_bounds(wrong):
    with pytest.raises(ContractBroken, match="retraining"):
        replace(PATIENCE, **wrong)
