"""A named pipe that only the launching process holds open for writing: when it is let go, the ranks stop.

torchrun starts ranks with all descriptors closed and in sessions of their own, so neither an inherited pipe nor a
signal to torchrun's group reaches them once torchrun is gone. A path does: each rank opens the pipe by name and looks
whether a writer is left. The kernel lets go of the writer whichever way the launching process ends.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import TracebackType

LIFELINE_VARIABLE = "DFLASH_LIFELINE"
"""Environment variable of the ranks: the pipe's path. Unique to a launch, so it also marks every process of it."""

POLL_SECONDS = 0.5
EXIT_LET_GO = 128 + signal.SIGTERM

logger = logging.getLogger(__name__)


class Lifeline:
    """The launching side: the pipe exists and is held from construction until `close` or the end of this process."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lifeline"
        os.mkfifo(self.path, mode=0o600)
        # Reading and writing: opening does not wait for a reader. Python does not pass it on to programs it starts.
        self._descriptor: int | None = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go: every rank that watches gets SIGTERM within `POLL_SECONDS`. Closing again does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def watch_lifeline(path: Path, *, grace_seconds: float) -> None:
    """The rank's side: from now on, a lifeline let go sends this process SIGTERM, and after the grace ends it.

    The second is for a rank that hangs in a collective, where no Python handler ever runs.
    """
    threading.Thread(target=_watch, args=(path, grace_seconds), name="lifeline", daemon=True).start()


def leave_when_let_go(path: Path, *, after_seconds: float) -> None:
    """For torchrun's own process: some time after the lifeline is let go it ends, whatever its threads still wait for.

    A signal it has by its parent's death; but interrupted while it stops the ranks, it can wait for ever for the
    threads that follow their logs.
    """
    threading.Thread(target=_leave, args=(path, after_seconds), name="lifeline", daemon=True).start()


def is_let_go(path: Path) -> bool:
    """Whether the launching process of a rank that was given this path is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    try:
        return not _is_held(descriptor)
    finally:
        os.close(descriptor)


def _leave(path: Path, after_seconds: float) -> None:
    _wait_until_let_go(path)
    time.sleep(after_seconds)
    os._exit(EXIT_LET_GO)


def _watch(path: Path, grace_seconds: float) -> None:
    _wait_until_let_go(path)
    _stop_this_process(grace_seconds)


def _wait_until_let_go(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    while _is_held(descriptor):
        time.sleep(POLL_SECONDS)


def _is_held(descriptor: int) -> bool:
    # An end of file is what a pipe without any writer reads as, also when the last was gone before this one looked.
    try:
        return os.read(descriptor, 1) != b""
    except BlockingIOError:
        return True


def _stop_this_process(grace_seconds: float) -> None:
    logger.warning("the launching process let go of this rank: stopping, at the latest in %.0f s", grace_seconds)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds)
    os._exit(EXIT_LET_GO)
