"""The parts of a step are laps of one clock: none is counted twice, none is lost, and waiting is told from working."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dflash_pipeline.training import step_clock
from dflash_pipeline.training.step import Wishes, run_step
from dflash_pipeline.training.step_clock import UNTIMED, HostClock, StepTimes, clock_of, watch_gradients
from tests.tiny_models import strong_drafter, tiny_config, tiny_target
from tests.training.test_step import OBJECTIVE, STEP
from tests.training.toy_run import ALONE

PARTS = ("target", "drafter", "backward", "communication", "optimizer")


class Hands:
    """A clock whose hands are moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(step_clock.time, "perf_counter", lambda: self.now)

    def move(self, seconds: float) -> None:
        self.now += seconds


@given(st.lists(st.tuples(st.sampled_from(PARTS), st.integers(0, 1000)), max_size=30))
def test_parts_are_the_laps_that_were_theirs_and_add_up(laps):
    with pytest.MonkeyPatch.context() as monkeypatch:
        hands = Hands(monkeypatch)
        clock = HostClock()
        clock.start()
        for part, seconds in laps:
            hands.move(seconds)
            clock.lap(part)
        times = clock.take()
    for part in PARTS:
        assert getattr(times, part) == sum(seconds for lap, seconds in laps if lap == part)
    assert times.busy + times.communication == sum(seconds for _, seconds in laps)


def test_after_the_last_gradient_a_rank_only_waits(monkeypatch: pytest.MonkeyPatch):
    hands, clock = Hands(monkeypatch), HostClock()
    clock.start()
    hands.move(1)
    clock.lap("drafter")
    for seconds in (2, 3):
        hands.move(seconds)
        clock.note_gradient()
    hands.move(7)
    clock.lap_backward()
    assert clock.take() == StepTimes(drafter=1, backward=5, communication=7)
    assert clock.take() == StepTimes()


def test_without_a_gradient_of_its_own_all_of_it_is_waiting(monkeypatch: pytest.MonkeyPatch):
    hands, clock = Hands(monkeypatch), HostClock()
    clock.start()
    clock.note_gradient()  # Of a micro-batch before.
    hands.move(2)
    clock.lap("backward")
    hands.move(3)
    clock.lap_backward()
    assert clock.take() == StepTimes(backward=2, communication=3)


def test_a_timed_step_is_the_untimed_one_bit_for_bit():
    drafter, target = strong_drafter(tiny_config()), tiny_target()
    found = []
    for clock in (UNTIMED, HostClock()):
        model = copy.deepcopy(drafter)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        result = run_step(
            model,
            target,
            optimizer,
            STEP,
            objective=OBJECTIVE,
            ranks=ALONE,
            max_gradient_norm=1.0,
            wishes=Wishes(),
            clock=clock,
        )
        found.append((result, [p.detach().clone() for p in model.parameters()], clock.take()))
    (plain, plain_weights, untimed), (timed, timed_weights, times) = found
    assert timed == plain
    assert all(torch.equal(a, b) for a, b in zip(plain_weights, timed_weights, strict=True))
    assert untimed == StepTimes()
    assert all(getattr(times, part) > 0 for part in PARTS)


def test_a_model_whose_gradients_stay_here_is_not_watched():
    model, clock = nn.Linear(2, 2), HostClock()
    watch_gradients(model, clock)
    assert not model.weight._post_accumulate_grad_hooks


def test_a_cpu_is_timed_on_the_host():
    assert isinstance(clock_of(torch.device("cpu")), HostClock)
