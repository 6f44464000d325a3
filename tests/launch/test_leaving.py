"""A rank ends past the interpreter's own end, where a gloo group can wait for ever; nothing it wrote may be lost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Each would keep an ordinary end waiting: an exit handler, a thread that is waited for, a destructor at the very end.
HANGING = """
import atexit, logging, sys, threading, time
from dflash_pipeline.launch.leaving import run_and_leave

class Group:
    def __del__(self, wait=time.sleep):
        wait(600)

group = Group()
atexit.register(time.sleep, 600)
threading.Thread(target=time.sleep, args=(600,)).start()

class Kept(logging.Handler):
    def emit(self, record):
        self.kept = record.getMessage()

    def flush(self):
        print(self.kept, end="")

logging.getLogger().addHandler(Kept())

def main(arguments):
    print("printed", *arguments, end=" ")
    print("complained", end="", file=sys.stderr)
    logging.warning("logged")
    BODY

run_and_leave(main, ["config"])
"""


def leave(body: str) -> subprocess.CompletedProcess[str]:
    program = HANGING.replace("BODY", body)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run([sys.executable, "-c", program], env=buffered, capture_output=True, text=True, timeout=30)


def test_it_leaves_with_its_exit_code_and_all_that_it_wrote():
    ended = leave("return 143")
    assert ended.returncode == 143
    assert ended.stdout == "printed config logged"
    assert ended.stderr == "complained"


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
def test_an_error_that_nobody_caught_is_shown_and_is_exit_code_one(error: str):
    ended = leave(f"raise {error}('unforeseen')")
    assert ended.returncode == 1
    assert ended.stdout == "printed config logged"
    assert f"{error}: unforeseen" in ended.stderr
