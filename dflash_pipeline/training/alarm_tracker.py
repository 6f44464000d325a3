"""Tells another tracker what it is told, and what follows from it: alarms, and a verdict at each epoch's end."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from torch import nn

from dflash_pipeline.contracts.events import EpochRecord, Record, StepRecord, VerdictRecord
from dflash_pipeline.training.alarms import NO_FACTS, AlarmState, Facts, state_after, watch
from dflash_pipeline.training.event_log import last_attempt_records
from dflash_pipeline.training.tracker import EndStatus, Params, Tracker
from dflash_pipeline.training.verdict import verdict

DISK_SECONDS = 60.0
"""How often free space is looked at."""
VERDICT_STEPS = 2000
"""Steps of an epoch that its verdict is over: the last ones."""
TENSORS_A_WEIGHT = 3
"""A checkpoint holds each weight and two moments of it."""


class DiskWatch:
    """Free space where checkpoints go, looked at once in `DISK_SECONDS`; no facts between."""

    def __init__(self, folder: Path, *, checkpoint_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._checkpoint_bytes = checkpoint_bytes
        self._clock = clock
        self._due = clock()

    def look(self) -> Facts:
        now = self._clock()
        if now < self._due:
            return NO_FACTS
        self._due = now + DISK_SECONDS
        return Facts(free_bytes=shutil.disk_usage(self._folder).free, checkpoint_bytes=self._checkpoint_bytes)


class AlarmTracker:
    """A tracker round a tracker. `state` is what an earlier attempt left, `AlarmState()` for a run's first."""

    def __init__(self, tracker: Tracker, *, state: AlarmState, look: Callable[[], Facts]) -> None:
        self.tracker = tracker
        self.state = state
        self._look = look
        self._steps: deque[StepRecord] = deque(maxlen=VERDICT_STEPS)

    def start(self, params: Params) -> None:
        self.tracker.start(params)

    def tell(self, record: Record) -> None:
        self.tracker.tell(record)
        if isinstance(record, StepRecord):
            self._steps.append(record)
        facts = self._look() if isinstance(record, StepRecord) else NO_FACTS
        alarms, self.state = watch(self.state, record, facts)
        for alarm in alarms:
            self.tracker.tell(alarm)
        if isinstance(record, EpochRecord):
            self._tell_verdict(record)

    def sync(self) -> None:
        self.tracker.sync()

    def end(self, status: EndStatus) -> None:
        self.tracker.end(status)

    def _tell_verdict(self, epoch: EpochRecord) -> None:
        judged = verdict(self._steps)
        self._steps.clear()
        if judged is not None:
            self.tracker.tell(
                VerdictRecord(
                    global_step=epoch.global_step,
                    epoch=epoch.epoch,
                    limit=judged.limit,
                    share=judged.share,
                    sentence=judged.sentence,
                )
            )


def watched(tracker: Tracker, run_dir: Path, *, drafter: nn.Module, first_step: int) -> AlarmTracker:
    """The tracker of an attempt that goes on after `first_step` steps, with the alarms told up to there."""
    before = [r for r in last_attempt_records(run_dir / "events.jsonl") if r.global_step <= first_step]
    weights = sum(parameter.numel() * parameter.element_size() for parameter in drafter.parameters())
    disk = DiskWatch(run_dir, checkpoint_bytes=TENSORS_A_WEIGHT * weights)
    return AlarmTracker(tracker, state=state_after(before), look=disk.look)
