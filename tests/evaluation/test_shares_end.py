"""Processes that measure beside one another end with the one that started them, whichever way it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.evaluation import shares
from tests.conftest import ROOT
from tests.launch.processes import alive, pids, until

MEASURING = """
import os, signal, sys, time
from pathlib import Path
from dflash_pipeline.evaluation import shares

def linger(*_):
    (Path(sys.argv[1]) / f"worker-{os.getpid()}").touch()
    time.sleep(600)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shares._measure_share = linger
    shares.measure_in_processes(None, [None, None], None, target_dir=Path(), num_processes=2, device="cpu")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_that_measures_outlives_the_one_that_started_it(tmp_path: Path, number: signal.Signals):
    script = tmp_path / "parent.py"
    script.write_text(MEASURING, encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert until(lambda: len(pids(tmp_path, "worker")) == 2, seconds=60)
        # Ctrl-C reaches all of them at once.
        os.killpg(parent.pid, number) if number == signal.SIGINT else parent.send_signal(number)
        assert until(lambda: parent.poll() is not None and not alive(pids(tmp_path, "worker")), seconds=15)
    finally:
        parent.kill()
        for pid in alive(pids(tmp_path, "worker")):
            os.kill(pid, signal.SIGKILL)
        _, errors = parent.communicate()
    # Of the interrupt one traceback, where it was; none of the others'.
    assert errors.count("Traceback") <= 1, errors


def test_one_that_is_killed_is_a_failure_with_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shares, "_measure_share", _die)
    with pytest.raises(Failed, match="was killed"):
        shares.measure_in_processes(None, [None, None], None, target_dir=Path(), num_processes=2, device="cpu")


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
