"""`kill -9` at every fault point of the chain; then the same command ends as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_pipeline.store.layout import Storage
from tests.faults.chain import left_in, run_chain
from tests.faults.conftest import Reference
from tests.faults.leftovers import nothing_holds
from tests.faults.planning import WITHOUT_ANSWERS, planning
from tests.faults.points import FEW, KILLS, Kill, Start, points_in_the_source


def test_every_point_of_the_source_is_in_the_campaign() -> None:
    assert points_in_the_source() == {kill.point for kill in KILLS}
    assert {kill.order for kill in FEW} <= {kill.order for kill in KILLS}


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.order.removeprefix("kill:"))
def test_killed_and_run_again(
    kill: Kill, again: int, reference: Reference, start_from: Callable[[Start], Path]
) -> None:
    storage = start_from(kill.start)
    killed = run_chain(storage, fault=kill.order)
    assert killed.was_killed, f"no run passes {kill.order}: exit code {killed.exit_code}\n{killed.errors}"
    ended = run_chain(storage)
    assert ended.exit_code == 0, ended.errors
    assert left_in(storage) == reference.left
    assert nothing_holds(storage) == []


@pytest.mark.timeout(600)
def test_killed_while_planning_and_run_again(tmp_path: Path) -> None:
    """Three points in a row in one storage, without training: the part of the campaign that every commit runs."""
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    planning(Storage(root=undisturbed))
    options = ("--dry-run", "--set", WITHOUT_ANSWERS)
    for kill in FEW:
        killed = run_chain(disturbed, *options, fault=kill.order)
        assert killed.was_killed, f"no run passes {kill.order}: exit code {killed.exit_code}\n{killed.errors}"
    assert left_in(disturbed) != left_in(undisturbed)
    assert run_chain(disturbed, *options).exit_code == 0
    assert left_in(disturbed) == left_in(undisturbed)
    assert left_in(disturbed).files != {}
    assert nothing_holds(disturbed) == []
