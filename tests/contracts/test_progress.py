"""Progress is true whenever it is read: by any thread, before the first manifest, across epochs of different length."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.plan import GlobalStep, Position, RunPlan
from dflash_pipeline.contracts.progress import Progress, ProgressBoard
from tests.strategies import epoch_steps, manifest_of, plan_of, summary_of


def run(
    board: ProgressBoard, plan: RunPlan, *, start: int = 0, opened: Callable[[], object] = lambda: None
) -> list[Progress]:
    """Advance from `start` steps done to the end; every reading after a change. `opened` is called in every epoch."""
    at = plan.position(GlobalStep(start))
    readings = []
    for epoch in range(at.epoch, plan.num_epochs):
        summary = plan.epochs[epoch]
        manifest = manifest_of(summary.num_steps, epoch=epoch, cost=summary.cost / summary.num_steps)
        first = at if epoch == at.epoch else Position(epoch=epoch, step=0)
        readings.append(board.open_epoch(plan, manifest, first))
        opened()
        readings += [board.advance() for _ in range(first.step, manifest.num_steps)]
        assert readings[-1] is board.read()
    return readings


@example([4, 3, 5])
@example([7, 8, 6])
@example([1])
@given(epoch_steps)
def test_it_rises_by_exactly_one_step_and_ends_at_exactly_one(steps):
    plan = plan_of(*steps, cost=0.1)
    readings = run(ProgressBoard(), plan)
    for before, after in itertools.pairwise(readings):
        opened = after.epoch != before.epoch
        assert after.run_steps_done - before.run_steps_done == (0 if opened else 1)
        assert after.epoch_steps_done == (0 if opened else before.epoch_steps_done + 1)
        assert after.run_cost_fraction >= before.run_cost_fraction
        assert before.state == "running"
        if opened:
            assert before.epoch_fraction == 1.0
    for reading in readings:
        at = Position(epoch=reading.epoch, step=reading.epoch_steps_done)
        assert reading.epoch_steps == steps[reading.epoch]
        assert reading.run_steps == sum(steps)
        assert reading.run_fraction == plan.step_fraction(at)
        assert reading.run_cost_fraction == pytest.approx(plan.cost_fraction(at))
    last = readings[-1]
    assert (last.epoch_fraction, last.run_fraction, last.run_cost_fraction) == (1.0, 1.0, 1.0)
    assert last.state == "finished"


@settings(max_examples=25)
@given(epoch_steps)
def test_a_resumed_run_reads_as_the_one_that_went_through(steps):
    plan = plan_of(*steps)
    whole = run(ProgressBoard(), plan)
    for start in range(plan.total_steps):
        resumed = run(ProgressBoard(), plan, start=start)
        assert resumed == whole[len(whole) - len(resumed) :]
        assert resumed[0].run_steps_done == start


def test_it_can_be_read_before_anything_is_known():
    board = ProgressBoard()
    reading = board.read()
    assert reading == Progress()
    assert (reading.state, reading.epoch) == ("not started", None)
    assert (reading.epoch_fraction, reading.run_fraction, reading.run_cost_fraction) == (0.0, 0.0, 0.0)
    with pytest.raises(ContractBroken, match="progress in epoch None: a step after 0 of 0; open the next epoch"):
        board.advance()


def test_steps_beyond_the_epoch_are_refused():
    board, plan = ProgressBoard(), plan_of(2, 1)
    board.open_epoch(plan, manifest_of(2), Position(epoch=0, step=0))
    board.advance()
    before = board.advance()
    with pytest.raises(ContractBroken, match="progress in epoch 0: a step after 2 of 2"):
        board.advance()
    assert board.read() is before


@pytest.mark.parametrize(
    ("num_steps", "epoch", "at", "what"),
    [
        (3, 0, Position(epoch=0, step=0), "manifest of epoch 0 with 3 steps, planned 2"),
        (1, 1, Position(epoch=0, step=0), "position in epoch 0, manifest of epoch 1"),
        (2, 7, Position(epoch=7, step=0), "manifest of epoch 7 with 2 steps, planned 0"),
        (2, 0, Position(epoch=0, step=3), "epoch 0 step 3 is not in the plan"),
    ],
)
def test_only_the_planned_manifest_can_be_opened(num_steps, epoch, at, what):
    board = ProgressBoard()
    with pytest.raises(ContractBroken, match=what):
        board.open_epoch(plan_of(2, 1), manifest_of(num_steps, epoch=epoch), at)
    assert board.read().state == "not started"


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch_steps_done": 3, "epoch_steps": 2},
        {"epoch_steps_done": -1},
        {"run_steps_done": 5, "run_steps": 4},
        {"run_steps_done": -1},
    ],
)
def test_a_reading_above_one_can_not_be_made(wrong):
    with pytest.raises(ContractBroken, match="progress in epoch 1"):
        Progress(epoch=1, **wrong)


def test_costs_follow_the_manifest_inside_an_epoch():
    dear = manifest_of(2, cost=1.0)
    dear = replace(dear, cost=dear.cost * [[3.0], [1.0]])
    plan = replace(plan_of(1), epochs=(dear.summary(), summary_of(1, epoch=1, cost=4.0)))
    board = ProgressBoard()
    board.open_epoch(plan, dear, Position(epoch=0, step=0))
    assert [board.advance().run_cost_fraction for _ in range(2)] == [3 / 8, 4 / 8]


def test_a_spinning_reader_sees_only_what_was_true():
    """From before the first manifest through several epochs; switches forced far more often than usual."""
    steps, board = [7, 8, 6, 1, 40, 3] * 20, ProgressBoard()
    plan = plan_of(*steps)
    real = {(epoch, total) for epoch, total in enumerate(steps)} | {(None, 0)}
    seen: set[tuple[int | None, int]] = set()
    faults: list[object] = []
    reading, done = threading.Event(), threading.Event()

    def spin() -> None:
        latest = 0
        try:
            while not done.is_set():
                now = board.read()
                seen.add((now.epoch, now.epoch_steps))
                shares = (now.epoch_fraction, now.run_fraction, now.run_cost_fraction)
                if not all(0 <= share <= 1 for share in shares) or now.run_steps_done < latest:
                    faults.append(now)
                latest = now.run_steps_done
                reading.set()
        except Exception as error:
            faults.append(error)

    def be_read() -> None:
        """However busy the machine is, the reader gets its turn in this epoch."""
        reading.clear()
        assert reading.wait(10)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader = threading.Thread(target=spin)
    try:
        reader.start()
        assert reading.wait(10)
        run(board, plan, opened=be_read)
    finally:
        done.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert faults == []
    assert seen <= real
    assert (None, 0) in seen
    assert len(seen) > 100
    assert board.read().state == "finished"
