"""Every `pr_` case of tests/cases: progress in epochs of different length, on resume and before there is a manifest."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.plan import GlobalStep, Position
from dflash_pipeline.contracts.progress import Progress, ProgressBoard
from tests.strategies import manifest_of, plan_of

CASES = Path(__file__).parents[1] / "cases"


def case(name: str) -> dict[str, Any]:
    return json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))


def run(board: ProgressBoard, steps: list[int]) -> list[Progress]:
    plan = plan_of(*steps)
    readings = []
    for epoch, num_steps in enumerate(steps):
        board.open_epoch(plan, manifest_of(num_steps, epoch=epoch), Position(epoch=epoch, step=0))
        readings += [board.advance() for _ in range(num_steps)]
    return readings


def test_varying_epochs():
    given = case("pr_varying_epochs")
    readings = run(ProgressBoard(), given["manifest_batches_per_epoch"])
    found = {(r.epoch, r.epoch_steps_done): r.epoch_fraction for r in readings}
    asked = [found[epoch, done] for epoch, done in given["sample_progress_after"]]
    assert asked == [1.0, 0.0625, 0.9375, 1.0, 1.0]
    assert max(found.values()) == 1.0
    assert readings[-1].run_fraction == 1.0


def test_resume_bar():
    given = case("pr_resume_bar")
    total = given["total_steps"]
    plan, board = plan_of(total), ProgressBoard()
    at = plan.position(GlobalStep(given["resume_at"]))
    readings = [board.open_epoch(plan, manifest_of(total), at)]
    assert readings[0].run_fraction == 0.5
    readings += [board.advance() for _ in range(given["resume_at"], given["then_run_to"])]
    assert {r.run_steps for r in readings} == {64}
    assert readings[-1].run_fraction == 1.0


def test_before_first_manifest():
    board, done = ProgressBoard(), threading.Event()
    readings: list[Progress] = []

    def poll() -> None:
        while not done.is_set():
            readings.append(board.read())
            time.sleep(0.001)

    reader = threading.Thread(target=poll)
    reader.start()
    time.sleep(0.05)
    plan = plan_of(10, 7)
    for epoch, num_steps in enumerate((10, 7)):
        board.open_epoch(plan, manifest_of(num_steps, epoch=epoch), Position(epoch=epoch, step=0))
        for _ in range(num_steps):
            time.sleep(0.002)
            board.advance()
    done.set()
    reader.join()
    assert readings[0].state == "not started"
    assert {r.epoch for r in readings} == {None, 0, 1}
    assert all(0 <= r.epoch_fraction <= 1 for r in readings)
    for before, after in pairwise(readings):
        assert after.epoch != before.epoch or after.epoch_fraction >= before.epoch_fraction


def test_every_case_is_asked():
    asked = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem.removeprefix("pr_") for path in CASES.glob("pr_*.json")} <= asked
