"""A rank that hears the first request to stop five seconds late: `python -m tests.cases.slow_to_stop CONFIG`."""

from __future__ import annotations

import sys
import time
from types import FrameType

from dflash_pipeline.launch import rank
from dflash_pipeline.launch.leaving import run_and_leave

DEAF_SECONDS = 5.0


class LateStopRequest(rank.StopRequest):
    """Requests are handled on the main thread between two steps of Python: only what is read of them comes late."""

    _first: float | None = None

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._first = self._first or time.monotonic()

    @property
    def asked(self) -> bool:
        return self._first is not None and time.monotonic() - self._first >= DEAF_SECONDS

    @asked.setter
    def asked(self, value: bool) -> None:
        """Set to False by the constructor; the moment of the first request says all."""


if __name__ == "__main__":
    rank.StopRequest = LateStopRequest  # type: ignore[misc]
    run_and_leave(rank.main, sys.argv[1:])
