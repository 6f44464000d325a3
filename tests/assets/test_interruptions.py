"""One long training, three attempts: asked to stop on two ranks, failed, and taken to its end on one."""

import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store.plans import epoch_file, plan_folder
from dflash_pipeline.store.records import load_record
from dflash_pipeline.tracking.mlflow_runs import run_status, values_by_step
from dflash_pipeline.tracking.store_uri import tracking_uri
from dflash_pipeline.training.checkpoint import CheckpointState, newest_whole_checkpoint
from dflash_pipeline.training.event_log import read_events

EPOCHS, BROKEN_EPOCH = 16, 12
LONG = ("--set", f"batching.epochs={EPOCHS}")
ON_ONE_RANK = ("--set", "training.num_ranks=1")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What was there after an attempt."""

    exit_code: int
    answer: dict[str, Any]
    record: RunRecord
    mlflow: str
    checkpoint_step: int
    ranks_left: int


@dataclass(frozen=True, kw_only=True)
class Story:
    plan: RunPlan
    dagster_status: str
    run_dir: Path
    uri: str
    stopped: Ending
    failed: Ending
    finished: Ending


@pytest.fixture(scope="module")
def story(chain, tmp_path_factory) -> Story:
    long = chain.copy(tmp_path_factory.mktemp("long") / "storage")
    uri = tracking_uri(long.storage.root)

    def ending(process: subprocess.Popen[str]) -> Ending:
        answer, _ = process.communicate(timeout=200)
        newest = newest_whole_checkpoint(run_dir / "checkpoints")
        record = load_record(run_dir / "run.json", RunRecord)
        return Ending(
            exit_code=process.returncode,
            answer=json.loads(answer),
            record=record,
            mlflow=run_status(uri, record.mlflow_run_id or "") or "none",
            checkpoint_step=load_record(newest / "state.json", CheckpointState).global_step if newest else 0,
            ranks_left=sum(str(run_dir) in " ".join(_command(p)) for p in psutil.process_iter()),
        )

    process = long.start("run", *LONG)
    run_dir = _wait_for_steps(process, long.storage.runs, beside=chain.facts["run"], steps=3)
    process.send_signal(signal.SIGTERM)
    stopped = ending(process)

    with dg.DagsterInstance.from_config(str(long.storage.dagster_home)) as instance:
        dagster_status = instance.get_runs(limit=1)[0].status.value

    plan = load_record(long.storage.record("tiny", "run_plan"), RunPlan)
    broken = epoch_file(plan_folder(long.storage.plans, snapshot=plan.snapshot, spec=plan.spec), BROKEN_EPOCH)
    away = broken.rename(broken.with_suffix(".away"))
    failed = ending(long.start("train", *LONG, *ON_ONE_RANK))
    away.rename(broken)

    finished = ending(long.start("train", *LONG, *ON_ONE_RANK))
    return Story(
        plan=plan,
        dagster_status=dagster_status,
        run_dir=run_dir,
        uri=uri,
        stopped=stopped,
        failed=failed,
        finished=finished,
    )


def _wait_for_steps(process: subprocess.Popen[str], runs: Path, *, beside: str, steps: int) -> Path:
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        for run_dir in runs.iterdir():
            events = read_events(run_dir / "events.jsonl") if run_dir.name != beside else []
            if sum(event["kind"] == "step" for event in events) >= steps:
                return run_dir
        time.sleep(0.05)
    raise AssertionError(f"no training got under way: {process.communicate()}")


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_training_that_is_asked_to_stop_is_killed_in_mlflow_with_a_whole_checkpoint(story):
    ending = story.stopped
    assert ending.exit_code == 130
    assert ending.answer["error"]["fix"]
    assert [(a.status, a.first_step, a.num_ranks) for a in ending.record.attempts] == [("stopped", 0, 2)]
    assert 3 <= ending.record.attempts[0].last_step == ending.checkpoint_step < story.plan.total_steps
    assert ending.mlflow == "KILLED"
    assert story.dagster_status == "CANCELED"


def test_a_rank_that_fails_makes_a_failed_run_that_says_why(story):
    ending = story.failed
    assert ending.exit_code == 1
    assert f"epoch-{BROKEN_EPOCH:03d}.parquet" in ending.answer["error"]["what"]
    assert [a.status for a in ending.record.attempts] == ["stopped", "failed"]
    assert ending.mlflow == "FAILED"
    assert ending.checkpoint_step == sum(e.num_steps for e in story.plan.epochs[:BROKEN_EPOCH])


def test_the_same_call_takes_it_to_its_end(story):
    ending = story.finished
    assert ending.exit_code == 0
    assert [a.status for a in ending.record.attempts] == ["stopped", "failed", "finished"]
    assert [a.num_ranks for a in ending.record.attempts] == [2, 1, 1]
    # Each goes on exactly where the one before has saved.
    assert [a.first_step for a in ending.record.attempts] == [
        0,
        story.stopped.checkpoint_step,
        story.failed.checkpoint_step,
    ]
    assert ending.checkpoint_step == story.plan.total_steps
    assert ending.mlflow == "FINISHED"


def test_no_attempt_leaves_a_process(story):
    assert [e.ranks_left for e in (story.stopped, story.failed, story.finished)] == [0, 0, 0]


def test_all_attempts_are_one_mlflow_run_with_every_step_once(story):
    [run_id] = {e.record.mlflow_run_id for e in (story.stopped, story.failed, story.finished)}
    losses = values_by_step(story.uri, run_id, "train/loss")
    assert list(losses) == list(range(1, story.plan.total_steps + 1))
    assert values_by_step(story.uri, run_id, "progress/run")[story.plan.total_steps] == 1.0


def test_no_step_was_done_twice(story):
    steps = [e["global_step"] for e in read_events(story.run_dir / "events.jsonl") if e["kind"] == "step"]
    assert steps == list(range(1, story.plan.total_steps + 1))
