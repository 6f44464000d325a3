"""From a run's event log to what a server is told: a fold over all of its lines, and over nothing else.

Whoever folds the same lines gets the same points with the same times. So what a server lacks can be made again at any
moment, by another process, too, and a point that is sent twice is one point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_pipeline.contracts.events import (
    AcceptanceRecord,
    AlarmRecord,
    AttemptRecord,
    EpochRecord,
    SpikeRecord,
    StepRecord,
    VerdictRecord,
)
from dflash_pipeline.tracking.points import (
    Counts,
    Point,
    acceptance_points,
    alarm_list,
    alarm_points,
    attempt_points,
    epoch_points,
    spike_sentence,
    step_points,
)
from dflash_pipeline.tracking.stretch import Smoothed, Stretch
from dflash_pipeline.training.event_json import as_record

POINTS_A_METRIC = "points_a_metric"
TOTAL_STEPS = "total_steps"
"""Parameters of a start that say how thin its charts are to be."""

Tags = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedPoint:
    """A point and when it was noted: what tells a later attempt's value of a step from an earlier one's."""

    point: Point
    unix_milliseconds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What one line of the log says to a server."""

    attempt: int = 0
    points: tuple[TimedPoint, ...] = ()
    tags: Tags | None = None
    params: Mapping[str, str] | None = None
    """Of an attempt that starts here."""


class Charting:
    """Lines in, in order; out what they say. Its memory is what later lines need of earlier ones."""

    def __init__(self) -> None:
        self._attempt = 0
        self._every = 1
        self._fresh = False
        self._latest_milliseconds = 0
        self._counts: dict[int, Counts] = {}
        self._smoothed = Smoothed()
        self._waiting: list[StepRecord] = []
        self._alarms: list[str] = []

    def read(self, event: Mapping[str, Any]) -> Told:
        milliseconds = self._time_of(event)
        if event["kind"] == "start":
            return self._start(event["params"], milliseconds)
        if event["kind"] == "end":
            return self.finish()
        record = as_record(event)
        match record:
            case StepRecord():
                return self._step(record, milliseconds)
            case EpochRecord():
                return self._told(epoch_points(record), milliseconds)
            case AttemptRecord():
                return self._told(attempt_points(record), milliseconds)
            case AcceptanceRecord():
                return self._told(acceptance_points(record), milliseconds)
            case AlarmRecord():
                return self._told(alarm_points(record), milliseconds, tags=self._alarm_tags(record))
            case VerdictRecord():
                return Told(attempt=self._attempt, tags={"last_verdict": record.sentence})
            case SpikeRecord():
                return Told(attempt=self._attempt, tags={"last_spike": spike_sentence(record)})
            case _:
                return Told(attempt=self._attempt)

    def _alarm_tags(self, record: AlarmRecord) -> Tags:
        """What the kind's newest alarm says, and which alarms there were."""
        self._alarms.append(f"{record.cause} at step {record.global_step}")
        return {
            f"alarm.{record.cause}": f"step {record.global_step}: {record.message}",
            "alarms": alarm_list(self._alarms),
        }

    def finish(self) -> Told:
        """What waited for more steps, if anything did: none will come."""
        if not self._waiting:
            return Told(attempt=self._attempt)
        return self._told(self._stretch_points(), self._latest_milliseconds)

    def _start(self, params: Mapping[str, Any], milliseconds: int) -> Told:
        before = self.finish()  # Of an attempt that was killed.
        self._attempt += 1
        self._fresh = True
        self._smoothed = Smoothed()
        self._every = _every(params)
        # Later than all before: with the wall clock put back, an earlier attempt's value would pass for the last.
        self._latest_milliseconds = max(milliseconds, self._latest_milliseconds + 1)
        as_text = {name: str(value) for name, value in params.items()}
        return Told(attempt=self._attempt, points=before.points, params=as_text)

    def _step(self, record: StepRecord, milliseconds: int) -> Told:
        tags = {f"attempt.{self._attempt}.first_step": str(record.global_step)} if self._fresh else None
        is_due = self._fresh or self._is_due(record)
        self._fresh = False
        # An attempt that starts again at a checkpoint counts on from there.
        self._counts[record.global_step] = self._counts.get(record.global_step - 1, Counts()).after(record)
        self._smoothed = self._smoothed.after(record)
        self._waiting.append(record)
        points = self._stretch_points() if is_due else []
        return self._told(points, milliseconds, tags=tags)

    def _is_due(self, record: StepRecord) -> bool:
        """Every so many steps, at spikes, and where an epoch begins or ends."""
        return (
            record.global_step % self._every == 0
            or record.spike
            or record.step == 0
            or record.epoch_fraction == 1.0
            or record.run_fraction == 1.0
        )

    def _stretch_points(self) -> list[Point]:
        stretch = Stretch(steps=tuple(self._waiting))
        self._waiting = []
        return step_points(stretch, self._counts[stretch.last.global_step], self._smoothed)

    def _told(self, points: list[Point], milliseconds: int, *, tags: Tags | None = None) -> Told:
        timed = tuple(TimedPoint(point=point, unix_milliseconds=milliseconds) for point in points)
        return Told(attempt=self._attempt, points=timed, tags=tags)

    def _time_of(self, event: Mapping[str, Any]) -> int:
        self._latest_milliseconds = max(self._latest_milliseconds, int(event["unix_seconds"] * 1000))
        return self._latest_milliseconds


def timed_points(events: Iterator[Mapping[str, Any]]) -> Iterator[TimedPoint]:
    """Every point that a whole log makes, in order."""
    charting = Charting()
    for event in events:
        yield from charting.read(event).points
    yield from charting.finish().points


def _every(params: Mapping[str, Any]) -> int:
    """How many steps make a point; 1 in logs of before charts were thinned."""
    most, total = params.get(POINTS_A_METRIC), params.get(TOTAL_STEPS)
    return 1 if not most or not total else max(1, -(-int(total) // int(most)))
