"""`dflash spikes`: the detector on any series of losses, and what it told of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.events import SpikeRecord
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.stages.loss_series import LossStep, read_losses
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.event_log import last_attempt_spikes
from dflash_pipeline.training.spike_events import events_of, flagged_steps
from dflash_pipeline.training.spikes import judge, no_history


def spikes_in_file(path: Path) -> dict[str, Any]:
    steps = read_losses(path)
    return spike_facts(told_of(steps), num_samples=_num_samples(steps))


def spikes_of_run(run: str, storage_dir: Path) -> dict[str, Any]:
    """What the last attempt of each step told. A run that is going on is read as far as it is."""
    storage = open_storage(storage_dir)
    run_dir = storage.runs / run
    if "/" in run or not (run_dir / "events.jsonl").exists():
        raise Refused(
            "there is no such run", where=str(run_dir), fix="name a folder of runs/, for example as `ls` shows it"
        )
    told = last_attempt_spikes(run_dir / "events.jsonl")
    return {"run": run, **spike_facts(told, num_samples=_num_planned(storage, run_dir))}


def told_of(steps: Sequence[LossStep]) -> list[SpikeRecord]:
    """What the detector tells of a series, step by step."""
    buckets = {bucket: index for index, bucket in enumerate(sorted({step.bucket for step in steps}))}
    state, told = no_history(len(buckets)), []
    for number, step in enumerate(steps):
        verdict, state = judge(state, loss=step.loss, bucket=buckets[step.bucket])
        if verdict.spike or verdict.slow_rise:
            told.append(
                SpikeRecord(
                    global_step=step.step,
                    epoch=step.epoch,
                    step=number,
                    bucket=step.bucket,
                    loss=step.loss,
                    expected_loss=verdict.expected_loss,
                    rule="point" if verdict.spike else "slow rise",
                    severity=verdict.severity or "warn",
                    sample_ids=step.sample_ids,
                )
            )
    return told


def spike_facts(told: Iterable[SpikeRecord], *, num_samples: int | None) -> dict[str, Any]:
    events = events_of(told, num_samples=num_samples)
    return {"flagged": flagged_steps(events), "events": [asdict(event) for event in events]}


def _num_samples(steps: Sequence[LossStep]) -> int | None:
    """Different samples in a series; None when not every step says which it had."""
    if not all(step.sample_ids for step in steps):
        return None
    return len({sample for step in steps for sample in step.sample_ids})


def _num_planned(storage: Storage, run_dir: Path) -> int | None:
    """Samples in an epoch of the run's plan; None when run or plan are not there any more."""
    record = run_dir / "run.json"
    if not record.exists():
        return None
    plan = load_record(record, RunRecord).plan
    sealed = next(storage.plans.glob(f"*/plan-{plan}.json"), None)
    return None if sealed is None else load_record(sealed, RunPlan).epochs[0].num_samples
