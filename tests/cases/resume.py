"""`rs_`: checkpoints that exist by name or in a folder, runs stopped and taken up again, and what a change rebuilds."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.store.files import folder_faults, new_folder
from dflash_pipeline.training.checkpoint import list_checkpoints, newest_whole_checkpoint, prune_checkpoints
from tests.cases.stale import observe_changes
from tests.cases.tiny_run import Seen, TinyRun, make_tiny_run


def observe(path: Path) -> dict[str, Any]:
    if path.is_dir():
        return _folder_of_checkpoints(path)
    case = json.loads(path.read_text(encoding="utf-8"))
    if "directories" in case:
        return _names(case)
    if "changes" in case:
        return observe_changes(case)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dflash-case-") as folder:
        if "checkpoint_step" in case:
            return _finished(case, Path(folder))
        if "stop_at_step" in case:
            return _stopped_at_step(case, Path(folder))
        if "stop_after_batches" in case:
            return _skipped_once(case, Path(folder))
    return {"not_observed": f"no known form of a resume case: {sorted(case)}"}


def _folder_of_checkpoints(path: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dflash-case-") as folder:
        copy = Path(shutil.copytree(path, Path(folder) / "checkpoints"))
        used = newest_whole_checkpoint(copy)
        return {
            "used": used.name if used else None,
            "newest_first": [p.name for p in list_checkpoints(copy)],
            "not_whole": {p.name: faults for p in list_checkpoints(copy) if (faults := folder_faults(p))},
            "still_there": sorted(p.name for p in copy.iterdir()),
        }


def _names(case: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dflash-case-") as folder:
        facts: dict[str, Any] = {"newest_first": [p.name for p in list_checkpoints(_made(case, Path(folder) / "all"))]}
        facts["after_keep"] = {
            str(keep): _pruned(_made(case, Path(folder) / f"keep{keep}"), keep) for keep in case["keep_last"]
        }
    return facts


def _made(case: Mapping[str, Any], folder: Path) -> Path:
    """Every name as a whole folder, with a hash list that holds."""
    for name in case["directories"]:
        with new_folder(folder / name, act="case") as fresh:
            (fresh / "state.json").write_text("{}", encoding="utf-8")
    return folder


def _pruned(folder: Path, keep: int) -> dict[str, Any]:
    before = {p.name for p in folder.iterdir()}
    try:
        prune_checkpoints(folder, keep=keep)
    except DflashError as error:
        return {"refused": str(error), "stay": sorted(p.name for p in folder.iterdir())}
    after = {p.name for p in folder.iterdir()}
    return {"stay": sorted(after), "deleted": sorted(before - after)}


def _finished(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A run trained to `checkpoint_step` of `total_steps`, then started again and again."""
    run = make_tiny_run(folder, samples=case["total_steps"], batch_samples=1, slots=1, epochs=1, seed=0)
    stop = case["checkpoint_step"] if case["checkpoint_step"] < case["total_steps"] else None
    run.attempt(1, stop_after=stop)
    before = _listed(run)
    starts = []
    for number in range(2, case["starts"] + 2):
        seen = run.attempt(number)
        assert seen.outcome is not None
        starts.append(
            {"steps": len(seen.losses), "success": seen.outcome.finished, "last_step": seen.outcome.last_step}
        )
    return {"starts": starts, "checkpoints_before": sorted(before), "checkpoints_unchanged": _listed(run) == before}


def _listed(run: TinyRun) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in run.checkpoints.iterdir()}


def _stopped_at_step(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The same run twice: through to the end, and stopped, then resumed in a new trainer from its checkpoint."""
    epochs = -(-case["uninterrupted_steps"] // case["batches_per_epoch"])
    whole, halved = (
        make_tiny_run(
            folder,
            samples=case["samples"],
            batch_samples=case["batch_samples"],
            slots=case.get("world_size", 1),
            epochs=epochs,
            seed=case["seed"],
            run_name=name,
        )
        for name in ("whole", "halved")
    )
    reference = whole.attempt(1)
    first = halved.attempt(1, stop_after=case["stop_at_step"])
    second = halved.attempt(2)
    again = list(second.losses)
    start = again[0] - 1
    position = halved.plan.position(second.outcome.first_step)  # type: ignore[union-attr, arg-type]
    return {
        "steps_per_epoch": [e.num_steps for e in whole.plan.epochs],
        "uninterrupted_steps": len(reference.losses),
        "stopped_after_steps": len(first.losses),
        "resumed_at_step": start,
        "resumed_at": {"epoch": position.epoch, "batch": position.step},
        # As in the case: a step is counted from 0 by its index.
        "steps_after_resume": [again[0] - 1, again[-1] - 1],
        "same_batches": second.batches == reference.batches[start:],
        "same_losses": second.losses == {n: loss for n, loss in reference.losses.items() if n > start},
        "last_loss": second.losses[again[-1]],
        "last_loss_uninterrupted": reference.losses[again[-1]],
    }


def _skipped_once(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    run = make_tiny_run(
        folder,
        samples=case["samples"],
        batch_samples=case["batch_samples"],
        slots=case.get("world_size", 1),
        epochs=case["epochs"],
        seed=case["seed"],
    )
    first = run.attempt(1, stop_after=case["stop_after_batches"])
    second = run.attempt(2)
    return {
        "batches_before_the_stop": first.batches_by_epoch,
        "batches_after_resume": second.batches_by_epoch,
        "epochs": [_coverage(epoch, first, second) for epoch in range(case["epochs"])],
    }


def _coverage(epoch: int, first: Seen, second: Seen) -> dict[str, Any]:
    ids = [*first.samples_by_epoch.get(epoch, []), *second.samples_by_epoch.get(epoch, [])]
    return {"epoch": epoch, "samples_used": len(ids), "distinct_samples": len(set(ids))}
