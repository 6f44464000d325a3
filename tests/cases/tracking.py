"""`tr_`: the spike detector on a loss curve; the MLflow tracker on a SQLite store, or a server that fails on time."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from dflash_pipeline.contracts.events import StepRecord
from dflash_pipeline.stages.loss_series import LossStep
from dflash_pipeline.stages.spikes import spike_facts, told_of
from dflash_pipeline.tracking.mlflow_runs import RunTemplate, ensure_experiment, run_status, values_by_step
from dflash_pipeline.tracking.replay import End, replay
from dflash_pipeline.tracking.store_uri import artifact_location, tracking_uri
from dflash_pipeline.training.event_log import last_attempt_losses
from tests.cases.mlflow_stub import FailingServer
from tests.tracking.logged_run import LoggedRun
from tests.tracking.training_records import step as step_record

LOSS = "train/loss"
NONFINITE = "loss/nonfinite"
ENDED = End(status="finished", unix_milliseconds=2_000_000_000_000)
POINTS_OF_A_RECORD = 19
"""Points that a step makes when it took no measurable time."""


def observe(path: Path) -> dict[str, Any]:
    case = json.loads(path.read_text(encoding="utf-8"))
    if "loss" in case:
        return _spikes(case["loss"])
    if "timeline" in case:
        return _outage(case)
    if "metrics" in case:
        return _nonfinite(case["metrics"], _new_experiment(path))
    if "metrics_at_step" in case:
        return _many(case, _new_experiment(path))
    if "first_attempt" in case:
        return _two_attempts(case, _new_experiment(path))
    return {"not_observed": f"no known form of a tracking case: {sorted(case)}"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Where the runs of one case go."""

    storage: Path
    name: str

    @property
    def uri(self) -> str:
        return tracking_uri(self.storage)


def _new_experiment(path: Path) -> Experiment:
    experiment = Experiment(storage=Path(_shared_folder().name), name=path.stem)
    ensure_experiment(experiment.uri, experiment.name, artifact_location(experiment.storage))
    return experiment


@cache
def _shared_folder() -> tempfile.TemporaryDirectory[str]:
    """One SQLite store for all cases: a new one takes seconds. Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="dflash-cases-mlflow-")


def _spikes(losses: Sequence[float | str]) -> dict[str, Any]:
    """Flags by index in the list, from 0."""
    facts = spike_facts(
        told_of(
            [
                LossStep(step=index, loss=float(loss), bucket=0, epoch=0, sample_ids=())
                for index, loss in enumerate(losses)
            ]
        ),
        num_samples=None,
    )
    return {
        "flagged": facts["flagged"],
        "events": [
            {"first": e["start"], "last": e["end"], "peak": e["peak_loss"], "peak_at": e["peak_step"]}
            for e in facts["events"]
        ],
    }


def _nonfinite(metrics: Sequence[Mapping[str, Any]], experiment: Experiment) -> dict[str, Any]:
    run = _run(experiment, None)
    run.start({})
    for metric in metrics:
        run.tell(_record(metric["step"], float(metric["loss"])))
    run.end("finished")
    uri, run_id = experiment.uri, run.run_id
    found = MlflowClient(uri).get_run(run_id)
    stored = {key: values_by_step(uri, run_id, key) for key in found.data.metrics}
    return {
        "steps_taken": len(metrics),
        "loss_points": stored[LOSS],
        "nonfinite_count": int(max(stored[NONFINITE].values())),
        "largest_value_of_any_metric": max(abs(v) for values in stored.values() for v in values.values()),
        "run_readable": bool(found.data.metrics),
        "run_status": run_status(uri, run_id),
    }


def _many(case: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    """As many points as the case says, waiting together. One step of ours makes at most 36, so they span steps."""
    records = math.ceil(case["metrics_at_step"] / POINTS_OF_A_RECORD)
    run = _run(experiment, None)
    run.log.start({})
    for number in range(records):
        run.log.tell(_record(case["step"] + number, 1.0, seconds=0.0))
    with _requests_seen() as sizes:
        run.mlflow.start({})
        run.end("finished")
    uri, run_id = experiment.uri, run.run_id
    keys = MlflowClient(uri).get_run(run_id).data.metrics
    return {
        "points_given": records * POINTS_OF_A_RECORD,
        "points_stored": sum(len(MlflowClient(uri).get_metric_history(run_id, key)) for key in keys),
        "requests_with_points": len([s for s in sizes if s]),
        "largest_request": max(sizes),
        "note": f"the points of {records} steps, sent together: one step of this pipeline has at most 36",
    }


@contextmanager
def _requests_seen() -> Iterator[list[int]]:
    """Numbers of metrics in each call of the client."""
    sizes: list[int] = []
    original = MlflowClient.log_batch

    def counted(self: MlflowClient, run_id: str, metrics: Any = (), **others: Any) -> Any:
        sizes.append(len(metrics))
        return original(self, run_id, metrics=metrics, **others)

    MlflowClient.log_batch = counted  # type: ignore[assignment, method-assign]
    try:
        yield sizes
    finally:
        MlflowClient.log_batch = original  # type: ignore[method-assign]


def _two_attempts(case: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    """The first attempt is not ended, as a killed one is not; both also write the run's event log."""
    uri = experiment.uri
    attempts = (case["first_attempt"]["logged_steps"], case["second_attempt"]["logged_steps"])
    steps = [range(first, last + 1) for first, last in attempts]
    run_id: str | None = None
    for number, logged in enumerate(steps, start=1):
        run = _run(experiment, run_id)
        run.start({})
        for step in logged:
            run.tell(_record(step, float(number), attempt=number))
        if number == len(steps):
            run.end("finished")
        else:
            run.mlflow.end("killed")
        run_id, events = run.run_id, run.events
    assert run_id is not None
    values = values_by_step(uri, run_id, LOSS)
    in_log = {step: float.fromhex(loss) for step, loss in last_attempt_losses(events)}
    experiment_id = ensure_experiment(uri, experiment.name, artifact_location(experiment.storage))
    return {
        "runs": len(MlflowClient(uri).search_runs([experiment_id])),
        "steps": [min(values), max(values)],
        "distinct_steps": len(values),
        "steps_rise": all(a < b for a, b in pairwise(values)),
        "steps_missing": sorted(set(steps[0]).union(steps[1]) - set(values)),
        "values_of_the_second_attempt": [min(s for s, v in values.items() if v == 2.0), max(values)],
        "values_of_the_first_attempt": [min(values), max(s for s, v in values.items() if v == 1.0)],
        "event_log_agrees": in_log == values,
    }


def _outage(case: Mapping[str, Any]) -> dict[str, Any]:
    """Steps at the case's pace while the server changes at the steps it names; then what is missing is sent."""
    changes = {entry["from_step"]: entry["server"] for entry in case["timeline"]}
    with (
        tempfile.TemporaryDirectory(prefix="dflash-case-") as folder,
        FailingServer(Path(folder) / "artifacts") as server,
    ):
        run = LoggedRun(server.uri, Path(folder), artifact_location=None, end_wait_seconds=60.0)
        longest, began = 0.0, time.monotonic()
        server.behave(changes.get(0, "up"))
        run.start({})
        for step in range(case["steps"]):
            if step in changes:
                server.behave(changes[step])
            due = began + (step + 1) * case["step_seconds"]
            before = time.monotonic()
            run.tell(_record(step, 1.0 + step))
            longest = max(longest, time.monotonic() - before)
            time.sleep(max(0.0, due - time.monotonic()))
        seconds = time.monotonic() - began
        run.end("finished")
        at_the_end = server.points(LOSS)
        template = RunTemplate(
            tracking_uri=server.uri, experiment="cases", artifact_location=None, run_name="case", tags={}, started_ms=1
        )
        sent = replay(Path(folder), template, run_id=run.run_id, end=ENDED).sent
        return {
            "steps": case["steps"],
            "seconds": seconds,
            "longest_stall": longest,
            "seconds_with_the_end": time.monotonic() - began,
            "when_the_run_had_ended": _points_facts(at_the_end, case["steps"]),
            "sent_afterwards": sent.num_points,
            "afterwards": _points_facts(server.points(LOSS), case["steps"]),
        }


def _points_facts(points: Sequence[tuple[int, float]], steps: int) -> dict[str, Any]:
    counts = [sum(1 for step, _ in points if step == wanted) for wanted in range(steps)]
    return {
        "points": len(points),
        "steps_with_exactly_one_point": counts.count(1),
        "steps_without": counts.count(0),
        "right_values": all(value == 1.0 + step for step, value in points),
    }


def _run(experiment: Experiment, run_id: str | None) -> LoggedRun:
    return LoggedRun(
        experiment.uri,
        experiment.storage / experiment.name,
        experiment=experiment.name,
        artifact_location=artifact_location(experiment.storage),
        run_id=run_id,
        end_wait_seconds=60.0,
    )


def _record(step: int, loss: float, *, attempt: int = 1, seconds: float = 0.5) -> StepRecord:
    return replace(step_record(step, attempt=attempt, loss=1.0), step=step, loss=loss, seconds=seconds)
