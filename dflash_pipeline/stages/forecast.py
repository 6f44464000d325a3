"""What every strategy would make of a snapshot, and how long an epoch would take by the step times of earlier runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import CorpusSnapshot, SampleLengths
from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.contracts.forecast import StrategyForecast, TimeModel
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.results import BucketBoundaries
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.model.target_files import target_fingerprint
from dflash_pipeline.planning.forecast import alternatives, forecast, name_of
from dflash_pipeline.planning.packing import Floats
from dflash_pipeline.planning.step_times import FEWEST_STEPS, fit_time_model
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.batching import batching_spec, sample_lengths
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import load_epoch
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.event_log import read_events
from dflash_pipeline.training.settings import LaunchConfig

logger = logging.getLogger(__name__)

LARGEST_CORPUS = 5_000_000
"""Above it a random part stands for the whole: shares and distances are the same, and a page waits for them."""


WARM_UP = 5


def make_forecast(
    recipe: Recipe, storage: Storage, snapshot: CorpusSnapshot, boundaries: BucketBoundaries
) -> tuple[list[StrategyForecast], TimeModel | None]:
    """All strategies on this snapshot under the recipe's rules, and the time model they were timed with, if any."""
    time = measured_time_model(storage.runs, target_fingerprint(recipe.target.path))
    spec = batching_spec(recipe, boundaries)
    return list(forecast_of(sample_lengths(storage, snapshot), spec, time)), time


def forecast_of(samples: SampleLengths, spec: BatchingSpec, time: TimeModel | None) -> Iterator[StrategyForecast]:
    """Every strategy under the rules of `spec`; that of `spec` itself is marked as chosen."""
    part = _part(samples)
    specs = {name: _placing(rules) for name, rules in alternatives(spec).items()}
    return forecast(part, specs, chosen=name_of(spec), time=time)


def measured_time_model(runs: Path, target: str) -> TimeModel | None:
    """Fitted to the newest run on this target that took enough steps; None when there is none."""
    measured = measured_run(runs, lambda config: config.target == target)
    return None if measured is None else measured[1]


def measured_run(runs: Path, wanted: Callable[[LaunchConfig], bool]) -> tuple[str, TimeModel] | None:
    """The newest wanted run that took enough steps, and what its times say."""
    for launch in sorted(runs.glob("*/launch.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            config = load_record(launch, LaunchConfig)
            if not wanted(config):
                continue
            steps = _of_one_size(list(_timed_steps(launch.parent, Path(config.plan_dir))))
            if len(steps) >= FEWEST_STEPS:
                return config.run, _fitted(steps)
        except (
            DflashError
        ) as fault:  # A record or a plan that is gone, or times that say nothing: the run before may do.
            logger.info("no step times from %s: %s", launch.parent.name, fault)
    return None


def _fitted(steps: Sequence[_TimedStep]) -> TimeModel:
    tokens, squares, batches = (
        np.stack([getattr(step, name) for step in steps]) for name in ("tokens", "squares", "batches")
    )
    return fit_time_model(np.array([step.seconds for step in steps]), tokens, squares, batches)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _TimedStep:
    """Seconds of one step, and what each rank ran in it."""

    seconds: float
    tokens: Floats
    squares: Floats
    batches: Floats


def _of_one_size(steps: Sequence[_TimedStep]) -> list[_TimedStep]:
    """Those on the number of ranks that most of them ran on."""
    sizes = Counter(step.batches.size for step in steps)
    return [step for step in steps if step.batches.size == max(sizes, key=lambda size: sizes[size])]


def _by_attempt(events: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        found.setdefault(event["attempt"], []).append(event)
    return found


def _timed_steps(run: Path, plan: Path) -> Iterator[_TimedStep]:
    """The steps of every attempt that is on record, but the first few of each, which warm up; newer ones replace."""
    attempts = {a.number: a.num_ranks for a in load_record(run / "run.json", RunRecord).attempts}
    events = [e for e in read_events(run / "events.jsonl") if e["kind"] == "step"]
    warm = [e for of_one in _by_attempt(events).values() for e in of_one[WARM_UP:]]
    of_epoch: dict[int, EpochManifest] = {}
    for event in {e["global_step"]: e for e in warm}.values():
        epoch, num_ranks = event["epoch"], attempts.get(event["attempt"])
        if num_ranks is None:
            continue
        if epoch not in of_epoch:
            of_epoch[epoch] = load_epoch(plan, epoch)
        rows, lengths = (
            values[event["step"]].reshape(-1, num_ranks).astype(np.float64)
            for values in (of_epoch[epoch].num_rows, of_epoch[epoch].padded_length)
        )
        yield _TimedStep(
            seconds=event["seconds"],
            tokens=(rows * lengths).sum(axis=0),
            squares=(rows * lengths**2).sum(axis=0),
            batches=np.full(num_ranks, float(rows.shape[0])),
        )


def _placing(spec: BatchingSpec) -> BatchingSpec:
    """The spec, with samples that it could not place left out instead of refused: a comparison goes on."""
    return replace(spec, overlong="drop", tail="fill")


def _part(samples: SampleLengths) -> SampleLengths:
    if samples.num_tokens.size <= LARGEST_CORPUS:
        return samples
    ids = np.sort(np.random.default_rng(0).choice(samples.num_tokens.size, LARGEST_CORPUS, replace=False))
    return SampleLengths(
        snapshot=samples.snapshot, num_tokens=samples.num_tokens[ids], num_supervised=samples.num_supervised[ids]
    )
