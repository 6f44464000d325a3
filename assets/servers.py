"""Server processes that live as long as this one, in the foreground: started, watched, and ended without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from dflash_pipeline.contracts.errors import Failed

START_SECONDS = 180.0
STOP_SECONDS = 10.0
SAVE_SECONDS = 60.0
"""For a training to write its checkpoint: its ranks are given 25 s by their launcher."""
QUIET_SECONDS = 5.0
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Servers = dict[str, "subprocess.Popen[bytes]"]
"""By the names that a user is told."""


def start(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches this process alone, which then ends all. The tether ends them when it dies.
    tether = [sys.executable, "-m", "dflash_pipeline.launch.tether", str(os.getpid()), "--"]
    return subprocess.Popen(
        [*tether, *command],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_until(ready: Callable[[], bool], name: str, servers: Servers) -> None:
    """Until `ready`; Failed when any of the servers ends before, or `name` takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        refuse_ended(servers)  # First: what answers at the address of one that has ended is another's.
        if ready():
            return
        if time.monotonic() > deadline:
            raise Failed(
                f"{name} did not answer within {START_SECONDS:.0f} s", where="dflash ui", fix="see its lines above"
            )
        time.sleep(0.1)


def watch(servers: Servers) -> None:
    """For ever, or until one ends: Failed then, with its name."""
    while True:
        refuse_ended(servers)
        time.sleep(1)


def refuse_ended(servers: Servers) -> None:
    for name, server in servers.items():
        if server.poll() is not None:
            raise Failed(
                f"{name} ended with exit code {server.returncode}, and the others with it",
                where="dflash ui",
                fix="see its lines above, then give the same command again",
            )


@contextmanager
def interruptible() -> Iterator[None]:
    """Each of the signals is Ctrl-C here, before the first server starts; SIGINT too where a shell has it ignored."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop(servers: Servers, *, saving: str, wait: Callable[[], None]) -> None:
    """SIGTERM to all, SIGKILL to what is left after a grace, which is longer for the server named `saving`.

    `wait` is called once if that takes a while. A second Ctrl-C ends the grace, and cannot leave anything behind.
    """
    hurried = threading.Event()
    for number in _STOPS:
        signal.signal(number, lambda _number, _frame: hurried.set())
    began, told = time.monotonic(), False
    left = {name: server.pid for name, server in servers.items() if _signal(server.pid, signal.SIGTERM)}
    while left and not hurried.is_set() and time.monotonic() - began < SAVE_SECONDS:
        passed = time.monotonic() - began
        if passed > STOP_SECONDS:
            for name in [name for name in left if name != saving]:
                _signal(left.pop(name), signal.SIGKILL)
        if passed > QUIET_SECONDS and saving in left and not told:
            wait()
            told = True
        time.sleep(0.05)
        for server in servers.values():
            server.poll()
        # A server may end before those it has started: the group is what counts.
        left = {name: group for name, group in left.items() if _signal(group, 0)}
    for group in left.values():
        _signal(group, signal.SIGKILL)
    for server in servers.values():
        server.wait()


def _signal(group: int, number: int) -> bool:
    """Whether the group still had a process to get the signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
