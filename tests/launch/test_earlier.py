"""Two launches never train one run at a time: the later one waits for what the earlier one left."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.launch import earlier
from dflash_pipeline.launch.earlier import wait_for_earlier_ranks
from tests.launch.processes import until

MODULE = "some.rank"


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the command line of a rank of the run in `tmp_path`."""
    line = [sys.executable, "-c", "import time; time.sleep(60)", "-m", MODULE, str(tmp_path / "launch.json")]
    process = subprocess.Popen(line)
    assert until(lambda: earlier.earlier_ranks(tmp_path / "launch.json", module=MODULE) == [process.pid], seconds=10)
    yield process
    process.kill()
    process.wait()


def test_a_rank_that_is_left_is_waited_for(tmp_path: Path, rank: subprocess.Popen[bytes]):
    ended: list[float] = []

    def leave() -> None:
        rank.kill()
        ended.append(time.monotonic())

    threading.Timer(0.7, leave).start()
    # Not reaped meanwhile: one that has ended counts as gone.
    wait_for_earlier_ranks(tmp_path / "launch.json", module=MODULE)
    assert ended
    assert rank.returncode is None


def test_one_that_stays_is_named_and_nothing_begins(tmp_path: Path, rank: subprocess.Popen[bytes]):
    with pytest.raises(Failed, match=rf"processes \[{rank.pid}\] still train this run; wait until that training has"):
        wait_for_earlier_ranks(tmp_path / "launch.json", module=MODULE, seconds=0.1)


@pytest.mark.parametrize(("name", "module"), [("other.json", MODULE), ("launch.json", "another.module")])
def test_another_run_and_another_program_are_not(name: str, module: str, tmp_path: Path, rank: subprocess.Popen[bytes]):
    wait_for_earlier_ranks(tmp_path / name, module=module, seconds=0.0)
