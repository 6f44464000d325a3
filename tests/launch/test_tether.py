"""If these fail, a killed Dagster step leaves torchrun training on as an orphan that holds the GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.launch.processes import is_alive, until

TETHER = [sys.executable, "-m", "dflash_pipeline.launch.tether"]


def test_becomes_the_command_and_gives_its_exit_code():
    process = subprocess.run([*TETHER, str(os.getpid()), "--", sys.executable, "-c", "raise SystemExit(7)"])
    assert process.returncode == 7


def test_an_orphan_does_not_start_the_command(tmp_path: Path):
    witness = tmp_path / "started"
    process = subprocess.run([*TETHER, "1", "--", "touch", str(witness)])
    assert process.returncode == 128 + signal.SIGTERM
    assert not witness.exists()


def test_says_how_it_is_used_and_what_is_missing():
    usage = subprocess.run([*TETHER, "12"], capture_output=True, text=True)
    assert usage.returncode == 2
    assert "usage" in usage.stderr
    missing = subprocess.run([*TETHER, str(os.getpid()), "--", "no-such-program"], capture_output=True, text=True)
    assert missing.returncode == 127
    assert "no-such-program" in missing.stderr


def test_the_command_ends_when_its_parent_is_killed(tmp_path: Path):
    script = f"""
import os, subprocess, time
tether = {TETHER!r} + [str(os.getpid()), "--", "sleep", "60"]
child = subprocess.Popen(tether, start_new_session=True)
time.sleep(1.0)  # time for the exec: the command itself must be tied, not only the wrapper
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}/comm").read_text().strip() == "sleep"
        parent.kill()
    assert until(lambda: not is_alive(child), seconds=2)


def test_it_and_the_launcher_load_nothing_heavy():
    script = """
import sys
import dflash_pipeline.launch.tether
assert "numpy" not in sys.modules and "pydantic" not in sys.modules
import dflash_pipeline.launch.torchrun
assert not {"torch", "mlflow", "dagster"} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
