"""What a run has reached, read from its folder."""

from __future__ import annotations

from pathlib import Path

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.contracts.events import StepRecord
from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.stages.early import stopped_early
from dflash_pipeline.stages.time_spent import time_spent
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.checkpoint import newest_whole_checkpoint
from dflash_pipeline.training.event_json import as_record
from dflash_pipeline.training.event_log import read_events
from dflash_pipeline.training.settings import LaunchConfig


def run_result(config: LaunchConfig, run_dir: Path) -> TrainedDrafter:
    """What a run has reached with its newest whole checkpoint, whether it is finished or not."""
    record = load_record(run_dir / "run.json", RunRecord)
    # Steps beyond the last one were done by an attempt whose checkpoints are gone.
    reached = record.attempts[-1].last_step if record.attempts else 0
    steps = {
        e["global_step"]: e
        for e in read_events(run_dir / "events.jsonl")
        if e["kind"] == "step" and e["global_step"] <= reached
    }
    checkpoint = newest_whole_checkpoint(run_dir / "checkpoints")
    if checkpoint is None or not steps:
        raise Failed(
            "the ranks ended without a whole checkpoint", where=str(run_dir), fix="look at events.jsonl, then run again"
        )
    ordered = [steps[number] for number in sorted(steps)]
    seconds = sum(e["seconds"] for e in ordered)
    return TrainedDrafter(
        run=config.run,
        run_dir=str(run_dir),
        plan=config.plan,
        checkpoint=str(checkpoint),
        total_steps=record.total_steps,
        steps_done=ordered[-1]["global_step"],
        num_ranks=record.attempts[-1].num_ranks,
        first_loss=float.fromhex(ordered[0]["loss_hex"]),
        last_loss=float.fromhex(ordered[-1]["loss_hex"]),
        num_spikes=sum(bool(e["spike"]) for e in ordered),
        useful_tokens_per_second=sum(e["real_tokens"] for e in ordered) / seconds,
        padded_tokens_per_second=sum(e["padded_tokens"] for e in ordered) / seconds,
        mlflow_run_id=record.mlflow_run_id,
        stopped_early=stopped_early(run_dir, config.early) if record.status == "stopped" else None,
        spent=time_spent([step for e in ordered if isinstance(step := as_record(e), StepRecord)]),
        warm_start=None if config.warm_start is None else config.warm_start.run,
    )
