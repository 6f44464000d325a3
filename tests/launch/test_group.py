"""Whatever ends the launching process or the command, no process may be left: a leftover rank holds a GPU for ever."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dflash_pipeline.launch.group import run_group
from tests.launch.processes import alive, pids, until

STAND_IN = Path(__file__).with_name("stand_in.py")


@contextmanager
def launched(folder: Path, kind: str, *, grace: float) -> Iterator[subprocess.Popen[bytes]]:
    """A launching process with a boss and two workers, all running."""
    # A launcher that is killed cannot clear its temporary folder away.
    environment = os.environ | {"TMPDIR": str(folder)}
    command = [sys.executable, STAND_IN, "launch", folder, kind, str(grace)]
    with subprocess.Popen(command, env=environment) as process:
        try:
            assert until(lambda: len(pids(folder, "worker")) == 2 and pids(folder, "boss"), seconds=20)
            yield process
        finally:
            process.kill()
            for pid in alive(everyone(folder)):
                os.kill(pid, signal.SIGKILL)


def everyone(folder: Path) -> list[int]:
    return pids(folder, "boss") + pids(folder, "worker")


def run(program: str, *, grace: float = 5.0) -> int:
    return run_group([sys.executable, "-c", program], environment=os.environ, stop_grace_seconds=grace)


def test_the_exit_code_is_the_commands():
    assert run("raise SystemExit(0)") == 0
    assert run("raise SystemExit(7)") == 7
    assert run("import os; os.kill(os.getpid(), 9)") == -signal.SIGKILL


def test_standard_output_stays_the_callers(capfd: pytest.CaptureFixture[str]):
    assert run("print('a line of a rank')") == 0
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "a line of a rank" in captured.err


def test_the_command_has_the_environment_given_and_a_session_of_its_own(tmp_path: Path):
    program = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(os.environ['COLOUR'] + str(os.getsid(0)))"
    code = run_group([sys.executable, "-c", program], environment=os.environ | {"COLOUR": "blue"}, stop_grace_seconds=5)
    assert code == 0
    seen = (tmp_path / "seen").read_text()
    assert seen.startswith("blue")
    assert seen != f"blue{os.getsid(0)}"


@pytest.mark.parametrize("kind", ["polite", "deaf"])
def test_killing_the_launcher_leaves_none(tmp_path: Path, kind: str):
    with launched(tmp_path, kind, grace=30) as launcher:
        launcher.kill()
        assert until(lambda: not alive(everyone(tmp_path)), seconds=5), alive(everyone(tmp_path))


@pytest.mark.parametrize(("kind", "grace"), [("polite", 30), ("lone", 1)])
def test_killing_the_command_leaves_none(tmp_path: Path, kind: str, grace: float):
    with launched(tmp_path, kind, grace=grace) as launcher:
        os.kill(pids(tmp_path, "boss")[0], signal.SIGKILL)
        assert launcher.wait(timeout=6) != 0
        assert alive(everyone(tmp_path)) == []


def test_an_interrupt_is_passed_on_as_a_request_and_comes_back(tmp_path: Path):
    with launched(tmp_path, "polite", grace=30) as launcher:
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(timeout=6) == -signal.SIGINT  # Python ends so after an uncaught KeyboardInterrupt
        assert (tmp_path / "asked-to-stop").exists()
        assert alive(everyone(tmp_path)) == []


def test_what_ignores_the_request_is_killed_after_the_grace(tmp_path: Path):
    with launched(tmp_path, "lone", grace=1.5) as launcher:
        start = time.monotonic()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(timeout=8) == -signal.SIGINT
        assert time.monotonic() - start > 1.5
        assert alive(everyone(tmp_path)) == []


def test_a_second_interrupt_kills_at_once(tmp_path: Path):
    with launched(tmp_path, "lone", grace=60) as launcher:
        launcher.send_signal(signal.SIGINT)
        assert until((tmp_path / "asked-to-stop").exists, seconds=5)
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(timeout=5) == -signal.SIGINT
        assert alive(everyone(tmp_path)) == []


def test_a_stopped_rank_is_killed(tmp_path: Path):
    with launched(tmp_path, "polite", grace=1) as launcher:
        os.kill(pids(tmp_path, "worker")[0], signal.SIGSTOP)
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(timeout=8) == -signal.SIGINT
        assert alive(everyone(tmp_path)) == []


def test_outside_the_main_thread_it_runs_without_a_tether_and_says_so(caplog: pytest.LogCaptureFixture):
    codes: list[int] = []
    with caplog.at_level(logging.WARNING):
        thread = threading.Thread(target=lambda: codes.append(run("import time; time.sleep(0.3)")))
        thread.start()
        thread.join()
    assert codes == [0]
    assert "without a tether" in caplog.text
