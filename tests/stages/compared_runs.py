"""Runs that were never trained: a launch, a plan and an event log each, as a run leaves them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dflash_pipeline.contracts.events import EpochRecord
from dflash_pipeline.contracts.run import Attempt, RunRecord
from dflash_pipeline.evaluation.acceptance import AcceptanceReport, PromptAcceptance, combine_results
from dflash_pipeline.stages.acceptance import AcceptanceComparison
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import save_record
from dflash_pipeline.training.event_log import EventLog
from dflash_pipeline.training.settings import LaunchConfig
from tests.tracking.training_records import spike, step
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import plan_of, write_toy


def launch_of(folder: Path) -> LaunchConfig:
    """A toy's launch; its plan lies in the storage `folder`."""
    return write_toy(folder, lengths=LENGTHS, spec=SPEC, epochs=2)


def write_run(storage: Storage, name: str, launch: LaunchConfig, *, loss: float = 3.0, num_ranks: int = 2) -> None:
    """A finished run of the launch's plan whose loss falls from `loss`, with a spike at step 5."""
    plan = plan_of(launch)
    folder = storage.runs / name
    log = EventLog(folder / "events.jsonl")
    log.start({"run": name, "learning_rate": 0.1, "version.torch": "2.13", "git.revision": name})
    for number in range(1, plan.total_steps + 1):
        position = plan.position(number - 1)
        value = 9.0 if number == 5 else loss / math.sqrt(number)
        told = step(number, loss=value, spike=number == 5)
        share = number / plan.total_steps
        log.tell(replace(told, epoch=position.epoch, step=position.step, run_cost_fraction=share, seconds=0.5))
        if number == 5:
            log.tell(spike(number))
        if position.step + 1 == plan.epochs[position.epoch].num_steps:
            log.tell(
                EpochRecord(
                    global_step=number,
                    epoch=position.epoch,
                    num_steps=plan.epochs[position.epoch].num_steps,
                    padding_efficiency=plan.epochs[position.epoch].padding_efficiency,
                    mean_loss=2.0,
                    seconds=1.0,
                )
            )
    log.end("finished")
    attempt = Attempt(number=1, num_ranks=num_ranks, first_step=0, status="finished", last_step=plan.total_steps)
    record = RunRecord(run=name, plan=plan.fingerprint, target="t", total_steps=plan.total_steps, attempts=(attempt,))
    save_record(folder / "run.json", record)
    save_record(folder / "launch.json", replace(launch, run=name, run_dir=str(folder)))


def write_report(storage: Storage, run: str, accepted: Sequence[int], *, prompts: str = "p") -> AcceptanceReport:
    """A report that gave every prompt two rounds with as many accepted tokens as said."""
    results = [
        PromptAcceptance(
            source="s",
            prompt=f"{prompts}{number}",
            prompt_tokens=4,
            num_tokens=2 * length + 1,
            histogram=tuple(2 * (length == place) for place in range(1, 5)),
            cut_tokens=0,
            lossless=True,
        )
        for number, length in enumerate(accepted)
    ]
    report = combine_results(results)
    comparison = AcceptanceComparison(
        run=run, export_dir="e", prompts="p", max_new_tokens=9, untrained=report, trained=report
    )
    save_record(storage.run_record(f"dagster-{run}", "acceptance_report"), comparison)
    return report
