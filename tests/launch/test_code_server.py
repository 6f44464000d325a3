"""A run whose code server dies ends what it has started: nobody could stop it through the page any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tests.conftest import ROOT
from tests.launch.processes import alive, pids, until


def test_a_run_ends_with_the_server_that_started_it(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-m", "tests.launch.code_server", str(tmp_path)], cwd=ROOT) as server:
        try:
            assert until(lambda: pids(tmp_path, "work"), seconds=20)
        finally:
            server.kill()
    started = pids(tmp_path, "run") + pids(tmp_path, "work")
    try:
        assert until(lambda: not alive(started), seconds=10)
        said = (tmp_path / "said").read_text()
        assert "the server that started this run has ended" in said
        assert "it continues at its newest checkpoint" in said
    finally:
        for pid in alive(started):
            psutil.Process(pid).kill()
