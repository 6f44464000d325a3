"""`kill -9` at every fault point of the chain; then the same command ends as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_pipeline.store.layout import Storage
from tests.faults.chain import WARM, Left, Reference, left_in, run_chain
from tests.faults.leftovers import nothing_holds
from tests.faults.planning import WITHOUT_ANSWERS, planning
from tests.faults.points import AGAIN_AND_AGAIN, FEW, KILLS, Kill, Start, points_in_the_source


def test_every_point_of_the_source_is_in_the_campaign() -> None:
    assert points_in_the_source() == {kill.point for kill in KILLS}
    assert {kill.point for kill in (*FEW, *AGAIN_AND_AGAIN)} <= {kill.point for kill in KILLS}


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.order.removeprefix("kill:"))
def test_killed_and_run_again(
    kill: Kill, again: int, reference: Reference, start_from: Callable[[Start], Path]
) -> None:
    """A point of planning is killed and run again without training: what training reads is compared by hash."""
    options, expected = judged_by(kill.start, reference)
    storage = start_from(kill.start)
    die(storage, kill, *options)
    ended = run_chain(storage, *options)
    assert ended.exit_code == 0, ended.errors
    assert left_in(storage) == expected
    assert nothing_holds(storage) == []


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_killed_again_and_again_while_planning_then_trained(
    reference: Reference, start_from: Callable[[Start], Path]
) -> None:
    """What planning leaves besides its files (database, Dagster's records) makes no other drafter either."""
    storage = start_from("empty")
    for kill in AGAIN_AND_AGAIN:
        die(storage, kill)
    ended = run_chain(storage)
    assert ended.exit_code == 0, ended.errors
    assert left_in(storage) == reference.left
    assert nothing_holds(storage) == []


@pytest.mark.timeout(600)
def test_killed_while_planning_and_run_again(tmp_path: Path) -> None:
    """Three points in a row in one storage, without training: the part of the campaign that every commit runs."""
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    planning(Storage(root=undisturbed))
    options = ("--plan-only", "--set", WITHOUT_ANSWERS)
    for kill in FEW:
        die(disturbed, kill, *options)
    assert left_in(disturbed) != left_in(undisturbed)
    assert run_chain(disturbed, *options).exit_code == 0
    assert left_in(disturbed) == left_in(undisturbed)
    assert left_in(disturbed).files != {}
    assert nothing_holds(disturbed) == []


def judged_by(start: Start, reference: Reference) -> tuple[tuple[str, ...], Left]:
    """Options of the run, and what an undisturbed one leaves."""
    match start:
        case "empty":
            return ("--plan-only",), reference.planned
        case "promoted":
            return WARM, reference.warm
        case _:
            return (), reference.left


def die(storage: Path, kill: Kill, *options: str) -> None:
    """The run that is killed. A point that it does not pass is a point the campaign says nothing about: a failure."""
    killed = run_chain(storage, *options, fault=kill.order)
    assert killed.was_killed, f"no run passes {kill.order}: exit code {killed.exit_code}\n{killed.errors}"
