"""A run as its folder tells it: record, launch, plan and events. What commands and pages about runs start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.events import Record, SpikeRecord, StepRecord
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.event_log import last_attempt_records
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.spike_events import SpikeEvent, events_of


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFiles:
    """One run, read as far as it is. What its folder lacks, or what was removed since, is None."""

    name: str
    folder: Path
    record: RunRecord | None
    launch: LaunchConfig | None
    plan: RunPlan | None
    plan_dir: Path | None
    records: tuple[Record, ...]
    """What the last attempt of each step told."""

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        return tuple(record for record in self.records if isinstance(record, StepRecord))

    @property
    def spikes(self) -> tuple[SpikeRecord, ...]:
        return tuple(record for record in self.records if isinstance(record, SpikeRecord))

    @property
    def events(self) -> list[SpikeEvent]:
        return events_of(self.spikes, num_samples=None if self.plan is None else self.plan.epochs[0].num_samples)


def run_folder(storage: Storage, name: str) -> Path:
    """The folder of a run by its name, or by what one name alone begins with. Refused where none or several do."""
    exact = storage.runs / name
    if "/" not in name and name not in ("", ".", "..") and exact.is_dir():
        return exact
    begun = [path for path in sorted(storage.runs.glob("*")) if path.is_dir() and path.name.startswith(name)]
    if "/" in name or not name or not begun:
        raise Refused(
            "there is no such run", where=str(exact), fix="name a folder of runs/, for example as `ls` shows it"
        )
    if len(begun) > 1:
        named = ", ".join(path.name for path in begun[:4])
        raise Refused(f"{len(begun)} runs begin so: {named}", where=str(exact), fix="give more of the name")
    return begun[0]


def read_run(storage: Storage, name: str) -> RunFiles:
    """The run that `run_folder` finds, as far as it is."""
    folder = run_folder(storage, name)
    if not (folder / "events.jsonl").exists():
        raise Refused(
            "this run has told nothing yet", where=str(folder), fix="wait for its first step, or start it again"
        )
    record = load_record(folder / "run.json", RunRecord) if (folder / "run.json").exists() else None
    launch = load_record(folder / "launch.json", LaunchConfig) if (folder / "launch.json").exists() else None
    sealed = None if record is None else next(storage.plans.glob(f"*/plan-{record.plan}.json"), None)
    return RunFiles(
        name=folder.name,
        folder=folder,
        record=record,
        launch=launch,
        plan=None if sealed is None else load_record(sealed, RunPlan),
        plan_dir=None if sealed is None else sealed.parent,
        records=tuple(last_attempt_records(folder / "events.jsonl")),
    )
