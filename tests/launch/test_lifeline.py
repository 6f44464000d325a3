"""If these fail, ranks outlive the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash_pipeline.launch.lifeline import EXIT_LET_GO, LIFELINE_VARIABLE, POLL_SECONDS, Lifeline
from tests.launch.processes import until

STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture
def lifeline(tmp_path: Path):
    with Lifeline(tmp_path) as line:
        yield line


def worker(folder: Path, kind: str, path: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {LIFELINE_VARIABLE: str(path)}
    process = subprocess.Popen([sys.executable, STAND_IN, "worker", folder, kind], env=environment)
    assert until(lambda: (folder / f"worker-{process.pid}").exists(), seconds=10)
    return process


def test_a_rank_lives_while_held_and_ends_when_let_go(tmp_path: Path, lifeline: Lifeline):
    with worker(tmp_path, "polite", lifeline.path) as rank:
        time.sleep(3 * POLL_SECONDS)
        assert rank.poll() is None
        lifeline.close()
        assert rank.wait(timeout=3) == -signal.SIGTERM


def test_a_rank_that_hangs_is_ended_after_the_grace(tmp_path: Path, lifeline: Lifeline):
    with worker(tmp_path, "deaf", lifeline.path) as rank:
        start = time.monotonic()
        lifeline.close()
        assert rank.wait(timeout=5) == EXIT_LET_GO
        assert time.monotonic() - start > 0.9


def test_a_rank_that_comes_too_late_ends_too(tmp_path: Path, lifeline: Lifeline):
    lifeline.close()
    with worker(tmp_path, "polite", lifeline.path) as rank:
        assert rank.wait(timeout=3) == -signal.SIGTERM
    with worker(tmp_path, "polite", tmp_path / "gone") as rank:
        assert rank.wait(timeout=3) == -signal.SIGTERM


def test_no_other_child_keeps_it_held(tmp_path: Path, lifeline: Lifeline):
    with (
        subprocess.Popen(["sleep", "30"], close_fds=False) as bystander,
        worker(tmp_path, "polite", lifeline.path) as rank,
    ):
        lifeline.close()
        assert rank.wait(timeout=3) == -signal.SIGTERM
        bystander.kill()


def test_closing_twice_closes_nothing_else(tmp_path: Path, lifeline: Lifeline):
    lifeline.close()
    with (tmp_path / "other").open("w") as other:
        lifeline.close()
        other.write("still open")
        other.flush()
