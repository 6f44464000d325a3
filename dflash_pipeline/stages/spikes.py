"""`dflash spikes`: the detector on any series of losses, and what it told of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.events import AlarmRecord, SpikeRecord
from dflash_pipeline.stages.loss_series import LossStep, read_losses
from dflash_pipeline.stages.run_files import RunFiles, read_run
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.training.spike_events import events_of, flagged_steps
from dflash_pipeline.training.spikes import judge, no_history
from dflash_pipeline.training.verdict import verdict

VERDICT_STEPS = 500
"""The last steps of a run, by which it is said what limits its throughput."""


def spikes_in_file(path: Path) -> dict[str, Any]:
    steps = read_losses(path)
    return spike_facts(told_of(steps), num_samples=_num_samples(steps))


def spikes_of_run(run: str, storage_dir: Path, *, full: bool = False, sample_losses: bool = False) -> dict[str, Any]:
    """What the last attempt of each step told. A run that is going on is read as far as it is.

    With `full` also the samples of its events; `sample_losses` computes the loss of each.
    """
    storage = open_storage(storage_dir)
    files = read_run(storage, run)
    judged = verdict(files.steps[-VERDICT_STEPS:])
    return {
        "run": run,
        "flagged": flagged_steps(files.events),
        "events": [asdict(event) for event in files.events],
        "alarms": [asdict(record) for record in files.records if isinstance(record, AlarmRecord)],
        "verdict": None if judged is None else {**asdict(judged), "shares": dict(judged.shares)},
    } | ({"forensics": _forensics(storage, files, sample_losses)} if full else {})


def _forensics(storage: Storage, files: RunFiles, sample_losses: bool) -> list[dict[str, Any]]:
    # Imported here: a series in a file needs none of it.
    from dflash_pipeline.stages.forensics import look_into

    return [asdict(found) for found in look_into(storage, files, with_losses=sample_losses)]


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
