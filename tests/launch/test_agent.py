"""torchrun's own process: it ends when nobody waits for it any more, and a rank's failure is not told as its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_pipeline.launch import torchrun
from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, Lifeline
from dflash_pipeline.launch.torchrun import torchrun_command
from tests.launch.processes import alive, is_alive, pids, until

HERE = Path(__file__).parent
PARENT = """
import os, subprocess, sys, time
from pathlib import Path
from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, Lifeline
folder = Path(sys.argv[1])
lifeline = Lifeline(folder)
tether = [sys.executable, "-m", "dflash_pipeline.launch.tether", str(os.getpid()), "--"]
agent = subprocess.Popen([*tether, *sys.argv[2:]], env={**os.environ, LIFELINE_VARIABLE: str(lifeline.path)})
(folder / f"agent-{agent.pid}").touch()
time.sleep(60)
"""
AGENT = """
import sys
from dflash_pipeline.launch import agent
agent.LEAVE_SECONDS = 1.0
sys.exit(agent.main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def stand_in_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun, "RANK_MODULE", "stand_in_rank")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("GREETING", "hello")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def hastened(tmp_path: Path) -> Iterator[list[str]]:
    """The agent's command on ranks that hear no signal; it leaves a second after it is let go, in place of forty."""
    command = torchrun_command(tmp_path / "deaf.json", num_ranks=2)
    arguments = command[command.index("--standalone") :]
    yield [sys.executable, "-c", AGENT, *arguments]
    for pid in alive(pids(tmp_path, "agent") + pids(tmp_path, "pid")):
        os.kill(pid, signal.SIGKILL)


def test_torchrun_ends_soon_after_its_parent_is_killed(tmp_path: Path, hastened: list[str]):
    """The tether asks it to stop, and it waits half a minute for ranks that do not: only its own watch can end it."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), *hastened])
    assert until(lambda: len(pids(tmp_path, "pid")) == 2, seconds=30)
    [agent] = pids(tmp_path, "agent")
    assert is_alive(agent)
    parent.kill()
    parent.wait()
    assert until(lambda: not is_alive(agent), seconds=4)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    with Lifeline(tmp_path) as lifeline:
        yield lambda kind: subprocess.Popen(
            torchrun_command(tmp_path / f"{kind}.json", num_ranks=2),
            env={**os.environ, LIFELINE_VARIABLE: str(lifeline.path)},
            stderr=subprocess.PIPE,
            text=True,
        )


def test_a_failed_rank_is_told_in_one_line_without_a_traceback(agent: Callable[[str], subprocess.Popen[str]]):
    started = agent("fails")
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 1
    assert "Traceback" not in errors
    assert "failed (exitcode: 7)" in errors


def test_a_request_to_stop_is_told_by_the_exit_code(agent: Callable[[str], subprocess.Popen[str]], tmp_path: Path):
    started = agent("waits")
    assert until(lambda: len(pids(tmp_path, "pid")) == 2, seconds=30)
    started.terminate()
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in errors
    assert alive(pids(tmp_path, "pid")) == []
