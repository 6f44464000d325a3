"""Whose weights a run begins with. Decided when the run is first started, and kept with it from then on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from dflash_pipeline.contracts.errors import DflashError, Refused
from dflash_pipeline.contracts.promotion import Contender, reign
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.evaluation.export import WEIGHTS, read_config
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.store.files import file_sha256, folder_faults, new_folder, set_aside
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.promotions import read_decisions
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.settings import LaunchConfig, RunLine, WarmStart
from dflash_pipeline.training.warm_start import first_weights_folder

_SCRATCH = "or set training.warm_start to scratch"


def choose_start(recipe: Recipe, storage: Storage, line: RunLine, *, fresh: bool) -> WarmStart | None:
    """The champion's weights where the recipe wants them; None for a start from scratch. Reads only.

    The same call again means the same run, whatever was promoted meanwhile by it or during it. So, unless `fresh`: an
    unfinished run of this line keeps its start. A finished one is found again while its start is champion, and also
    once a run of this line is champion itself. Otherwise the champion's weights make another run. Without a champion
    the run begins from scratch. Refused when the champion cannot be begun with.
    """
    if recipe.training.warm_start == "scratch":
        return None
    champion = _champion(recipe, storage)
    if not fresh:
        newest = _newest_of(storage, line)
        if newest is not None and (not _is_finished(storage, newest) or _began_with(newest, champion)):
            return newest.warm_start
        of_champion = None if champion is None else _launch(storage.runs / champion.run)
        if of_champion is not None and of_champion.line == line:
            return of_champion.warm_start
    return None if champion is None else start_from(storage, champion, line.drafter)


def start_from(storage: Storage, champion: Contender, drafter: DrafterConfig) -> WarmStart:
    """A start with this champion. Refused when its export is gone or damaged, or is a drafter of another shape."""
    check_shape_of_champion(storage, champion, drafter)
    folder = storage.exports / champion.export
    faults = folder_faults(folder)
    if not faults and file_sha256(folder / WEIGHTS) != champion.weights:
        faults = [f"{WEIGHTS} is not what was promoted"]
    if faults:
        raise _unfit(champion, folder, faults[0])
    return WarmStart(run=champion.run, export=champion.export, weights=champion.weights)


def check_shape_of_champion(storage: Storage, champion: Contender, drafter: DrafterConfig) -> None:
    """Refuse a champion whose export is gone, or whose shape is another. Reads its config alone."""
    folder = storage.exports / champion.export
    if not folder.is_dir():
        raise _unfit(champion, folder, "it is gone")
    found = read_config(folder)
    other = [
        f"{field.name} {getattr(found, field.name)}, here {getattr(drafter, field.name)}"
        for field in fields(DrafterConfig)
        if getattr(found, field.name) != getattr(drafter, field.name)
    ]
    if other:
        raise Refused(
            f"champion {champion.run} is a drafter of another shape: {'; '.join(other)}",
            where="training.warm_start",
            fix=f"set the drafter's shape as the champion's, {_SCRATCH}",
        )


def champion_to_begin_with(recipe: Recipe, storage: Storage, drafter: DrafterConfig) -> Contender | None:
    """The champion that a first run of this drafter would begin with; None where it is not asked for.

    Of a drafter that was begun with a champion before, the start may stand already, whoever is champion now.
    """
    if recipe.training.warm_start == "scratch":
        return None
    before = any(one.drafter == drafter and one.wanted_start == "champion" for one in _launches(storage))
    return None if before else _champion(recipe, storage)


def keep_first_weights(storage: Storage, start: WarmStart, run_dir: Path) -> None:
    """Copy the weights of a warm start into the run's folder, whole or not at all; the same again changes nothing."""
    kept, export = first_weights_folder(run_dir), storage.exports / start.export
    if kept.exists():
        if not folder_faults(kept) and file_sha256(kept / WEIGHTS) == start.weights:
            return
        set_aside(kept)
    if not (export / WEIGHTS).is_file() or file_sha256(export / WEIGHTS) != start.weights:
        raise Refused(
            f"the weights of {start.run}, with which this run began, are gone",
            where=str(export),
            fix=f"write them again with `dflash export {start.run} --out {export}`, or start over with --fresh",
        )
    with new_folder(kept, act="first-weights") as folder:
        for name in (WEIGHTS, "config.json"):
            shutil.copyfile(export / name, folder / name)


def first_weights_of(storage: Storage, run: str) -> Path | None:
    """The folder of what a warm run began with; None for a run from scratch, or where it is not whole."""
    launch, folder = _launch(storage.runs / run), first_weights_folder(storage.runs / run)
    if launch is None or launch.warm_start is None or not folder.is_dir() or folder_faults(folder):
        return None
    return folder


def told_beforehand(recipe: Recipe, storage: Storage) -> str:
    """The same of a run that is not there yet, by who is champion now."""
    champion = None if recipe.training.warm_start == "scratch" else _champion(recipe, storage)
    return told_start(recipe, None if champion is None else champion.run)


def told_start(recipe: Recipe, run: str | None) -> str:
    """In a sentence, with the weights of which run it begins, or that of none."""
    if run is not None:
        return f"the run begins with the weights of champion {run}"
    if recipe.training.warm_start == "champion":
        return "the run begins from scratch: there is no champion yet whose weights it could begin with"
    return "the run begins from scratch"


def _champion(recipe: Recipe, storage: Storage) -> Contender | None:
    line = reign(read_decisions(storage.promotions, recipe.name))
    return line[-1] if line else None


def _newest_of(storage: Storage, line: RunLine) -> LaunchConfig | None:
    """The run of this line that was last launched to begin with the champion."""
    return next((one for one in _launches(storage) if one.wanted_start == "champion" and one.line == line), None)


def _launches(storage: Storage) -> Iterator[LaunchConfig]:
    """Of all runs, the last launched first."""
    paths = sorted(storage.runs.glob("*/launch.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return (one for path in paths if (one := _launch(path.parent)) is not None)


def _launch(run_dir: Path) -> LaunchConfig | None:
    """None where there is no record, or none that this version reads: it is no run of today's line then."""
    try:
        return load_record(run_dir / "launch.json", LaunchConfig)
    except DflashError:
        return None


def _is_finished(storage: Storage, launch: LaunchConfig) -> bool:
    record = storage.runs / launch.run / "run.json"
    return record.exists() and load_record(record, RunRecord).status == "finished"


def _began_with(launch: LaunchConfig, champion: Contender | None) -> bool:
    weights = None if launch.warm_start is None else launch.warm_start.weights
    return weights == (None if champion is None else champion.weights)


def _unfit(champion: Contender, folder: Path, why: str) -> Refused:
    return Refused(
        f"the export of champion {champion.run} cannot be begun with: {why}",
        where=str(folder),
        fix=f"write it again with `dflash export {champion.run} --out {folder}`, {_SCRATCH}",
    )
