"""`dflash sync`: brings a run's MLflow page up to its event log, then looks whether everything is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.tracking.charting import TimedPoint, timed_points
from dflash_pipeline.tracking.mlflow_runs import SERVER_FAULTS, RunTemplate, without_password
from dflash_pipeline.tracking.sender import METRICS_A_CALL, RunSender
from dflash_pipeline.tracking.spool import Sent, Spool, lines_from
from dflash_pipeline.training.tracker import EndStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How the newest attempt ended, and when."""

    status: EndStatus
    unix_milliseconds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """What was sent, and to which run."""

    mlflow_run_id: str
    sent: Sent


def replay(
    run_dir: Path,
    template: RunTemplate,
    *,
    run_id: str | None,
    end: End | None,
    files: tuple[Path, ...] = (),
) -> Replayed:
    """Send what is after the mark, then what the server still lacks; called again it finds nothing to send.

    A run that is gone, or was never made, is made. `end` ends it; None leaves it as it is. Raises `Failed` when the
    server does not take it all: what has arrived is not sent again.
    """
    sender = RunSender(template)
    try:
        spool = Spool(run_dir, sender, run_id=run_id)
        spool.open()
        points = params = 0
        while (sent := spool.send_some()) is not None:
            points, params = points + sent.num_points, params + sent.num_params
        points += spool.finish().num_points
        points += send_missing(spool.events, sender=sender, tracking_uri=template.tracking_uri)
        for path in files:
            if path.exists():
                sender.send_file(path)
        if end is not None:
            sender.close(end.status, at_ms=end.unix_milliseconds)
    except SERVER_FAULTS as fault:
        raise Failed(
            f"MLflow did not take it: {without_password(fault)}",
            where=without_password(template.tracking_uri),
            fix="see that the server answers, and send again: what has arrived is not sent twice",
        ) from fault
    return Replayed(mlflow_run_id=sender.run_id, sent=Sent(num_points=points, num_params=params))


def send_missing(events: Path, *, sender: RunSender, tracking_uri: str) -> int:
    """Compares every point of the log with the run's, by metric, step and value; sends what it lacks, and counts it."""
    wanted: dict[str, list[TimedPoint]] = {}
    for timed in timed_points(event for event, _ in lines_from(events, 0)):
        wanted.setdefault(timed.point.key, []).append(timed)
    client, count = MlflowClient(tracking_uri), 0
    for key, points in wanted.items():
        present = {(row.step, row.value) for row in client.get_metric_history(sender.run_id, key)}
        lacking = [p for p in points if (p.point.step, p.point.value) not in present]
        for start in range(0, len(lacking), METRICS_A_CALL):
            some = lacking[start : start + METRICS_A_CALL]
            sender.send([Metric(p.point.key, p.point.value, p.unix_milliseconds, p.point.step) for p in some], {})
        count += len(lacking)
    return count
