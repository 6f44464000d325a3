"""Runs side by side: what differs between them, and whether it helped."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.events import AcceptanceRecord, AlarmRecord, EpochRecord
from dflash_pipeline.contracts.promotion import reign
from dflash_pipeline.evaluation.acceptance import AcceptanceReport
from dflash_pipeline.stages.acceptance import AcceptanceComparison
from dflash_pipeline.stages.promotion import difference_of
from dflash_pipeline.stages.run_curves import Curves, EpochFacts, curves_of, epoch_facts
from dflash_pipeline.stages.run_files import RunFiles, read_run, run_folder
from dflash_pipeline.stages.run_settings import differing, run_settings
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.store.promotions import read_decisions
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.spike_events import SpikeEvent
from dflash_pipeline.training.verdict import Verdict, verdict

MOST_RUNS = 8
VERDICT_STEPS = 2000
"""The last steps of a run, by which it is said what limits its throughput."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComparedRun:
    """One run as it is compared."""

    name: str
    recipe: str | None
    status: str
    settings: dict[str, str]
    curves: Curves
    epochs: tuple[EpochFacts, ...]
    events: tuple[SpikeEvent, ...]
    alarms: tuple[AlarmRecord, ...]
    verdict: Verdict | None
    acceptance: AcceptanceReport | None
    """By the newest report on what it exported."""

    @property
    def tokens_per_second(self) -> float:
        hours = self.curves.hours
        return float(self.curves.tokens[-1] / (3600 * hours[-1])) if hours.size and hours[-1] > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Comparison:
    """Runs in the order asked for; the first is what the others are held against."""

    runs: tuple[ComparedRun, ...]
    differences: dict[str, dict[str, str | None]]
    """Settings by name that are not the same in all runs, with what each run has."""


def compare_runs(names: Sequence[str], storage: Storage) -> Comparison:
    """Runs in this order, each once; one that goes on is read as far as it is."""
    asked = list(dict.fromkeys(run_folder(storage, name).name for name in names))
    if not 1 <= len(asked) <= MOST_RUNS:
        raise Refused(f"{len(asked)} runs", where="comparison", fix=f"name 1 to {MOST_RUNS} folders of runs/")
    reports = acceptance_of_runs(storage)
    runs = tuple(_compared(read_run(storage, name), reports.get(name)) for name in asked)
    return Comparison(runs=runs, differences=differing({run.name: run.settings for run in runs}))


def compare_in(storage_dir: Path, names: Sequence[str]) -> Comparison:
    """`compare_runs` of two different runs or more."""
    storage = open_storage(storage_dir)
    if len({run_folder(storage, name) for name in names}) < 2:
        raise Refused("there is nothing to compare with", where="dflash compare", fix="name two runs or more")
    return compare_runs(names, storage)


def compare_with_champion(storage: Storage, recipe_name: str, run: str) -> Comparison:
    """A run held against what `against` names; alone where there is nothing, or nothing that can be read."""
    other = against(storage, recipe_name, run)
    if other is not None:
        try:
            return compare_runs([other, run], storage)
        except Refused as error:
            logger.warning("run %s stands alone: %s", run, error)
    return compare_runs([run], storage)


def against(storage: Storage, recipe_name: str, run: str) -> str | None:
    """What a run of a recipe is held against: the last champion that was another run, or else the newest other run."""
    for contender in reversed(reign(read_decisions(storage.promotions, recipe_name))):
        if contender.run != run and (storage.runs / contender.run / "events.jsonl").exists():
            return contender.run
    others = [
        path.parent
        for path in storage.runs.glob("*/launch.json")
        if path.parent.name != run
        and (path.parent / "events.jsonl").exists()
        and load_record(path, LaunchConfig).experiment == recipe_name
    ]
    newest = max(others, key=lambda folder: (folder / "events.jsonl").stat().st_mtime_ns, default=None)
    return None if newest is None else newest.name


def comparison_facts(comparison: Comparison) -> dict[str, Any]:
    """The comparison as one document."""
    first, *others = comparison.runs
    return {
        "runs": [_run_facts(run) for run in comparison.runs],
        "differences": comparison.differences,
        "acceptance_differences": [
            {"before": first.name, "after": other.name, **found}
            for other in others
            if (found := acceptance_difference(first, other)) is not None
        ],
    }


def acceptance_difference(before: ComparedRun, after: ComparedRun) -> dict[str, Any] | None:
    """Acceptance length of one less that of the other, prompt by prompt; None without reports on the same prompts."""
    if before.acceptance is None or after.acceptance is None:
        return None
    try:
        return asdict(difference_of(before.acceptance, after.acceptance))
    except ContractBroken:  # Of other prompts.
        return None


def acceptance_of_runs(storage: Storage) -> dict[str, AcceptanceReport]:
    """By run, the newest report that a materialisation of `acceptance_report` left."""
    records = storage.dagster_home / "records"
    paths = [*records.glob("*/acceptance_report.json"), *records.glob(".runs/*/acceptance_report.json")]
    found: dict[str, AcceptanceReport] = {}
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        try:
            record = load_record(path, AcceptanceComparison)
        except Refused:  # Written when a report had other fields.
            continue
        found[record.run] = record.trained
    return found


def _compared(run: RunFiles, acceptance: AcceptanceReport | None) -> ComparedRun:
    if not run.steps:
        raise Refused("it has not done a step yet", where=str(run.folder), fix="compare runs that have begun")
    measured = [record for record in run.records if isinstance(record, AcceptanceRecord)]
    cost = None if run.plan is None else sum(epoch.cost for epoch in run.plan.epochs)
    return ComparedRun(
        name=run.name,
        recipe=None if run.launch is None else run.launch.experiment,
        status="unknown" if run.record is None else run.record.status,
        settings=run_settings(run),
        curves=curves_of(run.steps, measured, total_cost=cost),
        epochs=epoch_facts([record for record in run.records if isinstance(record, EpochRecord)], run.steps),
        events=tuple(run.events),
        alarms=tuple(record for record in run.records if isinstance(record, AlarmRecord)),
        verdict=verdict(run.steps[-VERDICT_STEPS:]),
        acceptance=acceptance,
    )


def _run_facts(run: ComparedRun) -> dict[str, Any]:
    curves, report = run.curves, run.acceptance
    return {
        "run": run.name,
        "recipe": run.recipe,
        "status": run.status,
        "steps": int(curves.steps[-1]),
        "cost": float(curves.cost[-1]),
        "tokens": int(curves.tokens[-1]),
        "hours": float(curves.hours[-1]),
        "tokens_per_second": run.tokens_per_second,
        "loss": float(curves.loss[-1]),
        "expected_acceptance": float(curves.expected_acceptance[-1]),
        "acceptance": None
        if report is None
        else {"mean": report.mean, "interval": report.interval, "num_prompts": report.num_prompts},
        "epochs": [asdict(epoch) for epoch in run.epochs],
        "events": [asdict(event) for event in run.events],
        "alarms": [asdict(alarm) for alarm in run.alarms],
        "verdict": None if run.verdict is None else run.verdict.sentence,
        "curves": curves.sampled(),
    }
