"""Ends a rank that makes no progress, and says where it stands: a group of ranks waits for its slowest for ever.

The rank that hangs has to be told from those that wait for it. What the main thread is doing shows it: a rank that
waits stands in a collective (or in a backward pass, which ends in one) and is given a little longer, so that the one
that hangs is the first to speak.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import FrameType

WAITING_FACTOR = 1.25
_INNERMOST = 3
_WAITS_IN = (f"torch{os.sep}distributed{os.sep}", f"torch{os.sep}autograd{os.sep}graph.py")


class StepWatch:
    """From `start` on, calls `end` with a report once `seconds` pass without a `beat`."""

    def __init__(self, *, seconds: float, rank: int, end: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._rank = rank
        self._end = end
        self._main = threading.get_ident()
        self._last = (time.monotonic(), "the start")
        self._over = threading.Event()

    def start(self) -> StepWatch:
        threading.Thread(target=self._watch, name="step-watch", daemon=True).start()
        return self

    def beat(self, doing: str) -> None:
        """The main thread has come this far: `doing` says what it does next."""
        self._last = (time.monotonic(), doing)

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._seconds / 20)):
            since, doing = self._last
            frame = sys._current_frames().get(self._main)
            if frame is None:
                return  # The main thread has ended.
            waits = _is_waiting(frame)
            if time.monotonic() - since > self._seconds * (WAITING_FACTOR if waits else 1.0):
                self._end(self._report(frame, doing, waits=waits))
                return

    def _report(self, frame: FrameType, doing: str, *, waits: bool) -> str:
        stack = "".join(traceback.format_stack(frame, limit=12))
        what = "waits for another rank that has stopped" if waits else "hangs"
        return (
            f"{_all_threads()}\n{stack}rank {self._rank} {what}: no progress for {self._seconds:g} s at {doing} "
            "(training.step_timeout_seconds); where it stands is above\n"
        )


def _is_waiting(frame: FrameType) -> bool:
    """Whether one of its innermost calls is a collective: the very last may be a lock or a clock inside it."""
    innermost = [f.f_code.co_filename for f, _ in islice(traceback.walk_stack(frame), _INNERMOST)]
    return any(part in name for name in innermost for part in _WAITS_IN)


def _all_threads() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def write_and_exit(path: Path) -> Callable[[str], None]:
    """An `end` that leaves the report where the launcher looks for it, and ends the process, whatever holds it."""

    def end(report: str) -> None:
        path.write_text(report, encoding="utf-8")
        sys.stderr.write(report)
        sys.stderr.flush()
        os._exit(1)

    return end
