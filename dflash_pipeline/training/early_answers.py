"""The ranks' side of the early answer: weights handed out between two steps, measurements taken in as records.

A step waits for a copy of the weights in main memory, and for nothing else: a thread writes them, another process
measures them (`launch.early_acceptance`). Nothing here ends a run by failing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from dflash_pipeline.contracts.events import AcceptanceRecord
from dflash_pipeline.training.early import AROUND_STEPS, Answer, EarlySettings, Unmeasured, expected_around, next_due
from dflash_pipeline.training.early_mailbox import Mailbox
from dflash_pipeline.training.sharding import whole

LOOK_SECONDS = 0.1

logger = logging.getLogger(__name__)


def lend_weights(model: nn.Module) -> None:
    """Give the first rank this rank's parts while it hands weights out; nothing to do where every rank holds all."""
    for tensor in model.state_dict().values():
        whole(tensor.detach())


class EarlyAnswers:
    """Of the first rank. At most one measurement is under way: while it is, nothing more is handed out."""

    def __init__(self, settings: EarlySettings, run_dir: Path, *, done: int, total_steps: int) -> None:
        self.mailbox = Mailbox(run_dir)
        self.reason: str | None = None
        """Why the run should end, once a measurement says so."""
        self.handed_seconds: list[float] = []
        """What each handing out took of the ranks' time."""
        self._settings = settings
        self._total_steps = total_steps
        self._next = self._next_due(done)
        self._handed = 0
        self._under_way: int | None = None
        _, self._read = self.mailbox.read_answers(0)
        self._estimates: dict[int, float] = {}
        self._failed = False

    def is_due(self, step: int) -> bool:
        """Whether the step that is about to run, the `step`-th of the run, should end in a handing out."""
        return (
            step >= self._next
            and self._under_way is None
            and self.reason is None
            and not self._failed
            and self.mailbox.is_ready
            and not self.mailbox.is_given_up
        )

    def hand_out(self, step: int, model: nn.Module) -> None:
        """Copy the weights, and return. Of weights in parts every other rank must call `lend_weights` meanwhile."""
        began = time.perf_counter()
        tensors = {name: whole(t.detach()).to("cpu", copy=True).contiguous() for name, t in model.state_dict().items()}
        self._start(step)
        write = partial(self._write_down, step, lambda: self.mailbox.put(step, tensors))
        threading.Thread(target=write, name="early-writer", daemon=True).start()
        self.handed_seconds.append(time.perf_counter() - began)

    def note(self, step: int, expected_acceptance: float) -> None:
        """What training expects of this step, to stand beside what is measured."""
        self._estimates[step] = expected_acceptance
        oldest = (step if self._under_way is None else self._under_way) - AROUND_STEPS
        for old in [other for other in self._estimates if other < oldest]:
            del self._estimates[old]

    def arrived(self) -> list[AcceptanceRecord]:
        """What was measured since the last call; sets `reason`. Costs a look at one file's size, or nothing."""
        if self._under_way is None:
            return []
        answers, self._read = self.mailbox.read_answers(self._read)
        return list(self._taken(answers))

    def last(self, step: int, weights: Path, *, goes_on: Callable[[], bool]) -> list[AcceptanceRecord]:
        """At the training's end: waits for what is under way, and then for the weights of this file.

        Not longer than the settings say, and only while `goes_on`, which is asked often.
        """
        records: list[AcceptanceRecord] = []
        deadline = time.monotonic() + self._settings.end_wait_seconds
        while self.reason is None and not self._failed and not self.mailbox.is_given_up:
            records += self.arrived()
            if self._under_way is None and self._handed == step:
                break
            if self._under_way is None and self.reason is None and self.mailbox.is_ready:
                self._start(step)
                self._write_down(step, lambda: self.mailbox.put_file(step, weights))
            if time.monotonic() > deadline or not goes_on():
                break
            time.sleep(LOOK_SECONDS)
        return records

    def _taken(self, answers: Iterable[Answer]) -> Iterable[AcceptanceRecord]:
        for answer in answers:
            self._under_way = None
            if isinstance(answer, Unmeasured):
                logger.warning("acceptance after step %s was not measured: %s", answer.global_step, answer.why)
                continue
            record = answer.record(expected_acceptance=expected_around(answer.global_step, self._estimates))
            self.reason = self.reason or self._settings.stop.reason(record)
            yield record

    def _start(self, step: int) -> None:
        self._under_way = self._handed = step
        self._next = self._next_due(step)

    def _next_due(self, after: int) -> int:
        return next_due(after, every_steps=self._settings.every_steps, total_steps=self._total_steps)

    def _write_down(self, step: int, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, SafetensorError) as error:
            self._failed = True
            logger.warning("acceptance is measured no more: weights of step %s cannot be written: %s", step, error)
