"""Ending servers: politely, then not; and how a second Ctrl-C shortens it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from dflash_pipeline.assets import servers as subject
from dflash_pipeline.assets.servers import Servers, interruptible, start, stop, wait_until, watch
from dflash_pipeline.contracts.errors import Failed
from tests.launch.processes import is_alive

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def deaf(tmp: str) -> list[str]:
    """Does not hear SIGTERM, and makes the file `tmp` once that is so."""
    return program(f"{DEAF.replace('print', 'open(' + repr(tmp) + ', chr(119)).close(); print')}")


@pytest.fixture
def both(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Two servers that do not hear SIGTERM, one of which may be saving."""
    monkeypatch.setattr(subject, "STOP_SECONDS", 0.3)
    monkeypatch.setattr(subject, "QUIET_SECONDS", 0.2)
    found = {name: start(deaf(str(tmp_path / name)), os.environ) for name in ("page", "code")}
    wait_until(lambda: all((tmp_path / name).exists() for name in found), "both", {})
    return found


def test_what_does_not_end_is_killed_and_what_saves_is_given_longer(both: Servers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "SAVE_SECONDS", 1.5)
    began, alive = time.monotonic(), []
    looks = threading.Timer(1.0, lambda: alive.append([name for name, s in both.items() if is_alive(s.pid)]))
    looks.start()
    waited: list[str] = []
    with interruptible():
        stop(both, saving="code", wait=lambda: waited.append("told"))
    assert time.monotonic() - began >= 1.5
    assert (alive, waited) == ([["code"]], ["told"])
    assert not any(is_alive(server.pid) for server in both.values())


def test_a_second_interrupt_does_not_wait_and_leaves_nothing(both: Servers):
    began = time.monotonic()
    again = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    again.start()
    with interruptible():
        stop(both, saving="code", wait=lambda: None)
    assert time.monotonic() - began < subject.SAVE_SECONDS / 2
    assert not any(is_alive(server.pid) for server in both.values())


def test_the_end_of_any_is_told_by_its_name():
    servers = {"the page": start(program("import time; time.sleep(600)"), os.environ)}
    servers["the daemon"] = start(program("raise SystemExit(3)"), os.environ)
    try:
        with pytest.raises(Failed, match="the daemon ended with exit code 3"):
            watch(servers)
    finally:
        with interruptible():
            stop(servers, saving="", wait=lambda: None)


def test_waiting_for_one_that_never_answers_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "START_SECONDS", 0.2)
    with pytest.raises(Failed, match="the page did not answer within 0 s"):
        wait_until(lambda: False, "the page", {})
