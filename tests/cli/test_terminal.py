"""What a person at a terminal sees of a run: bars that move, and whole lines."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_pipeline.assets import terminal_log
from tests.conftest import write_recipe


def test_a_run_at_a_terminal_shows_bars_and_its_answer_stays_clean(tmp_path: Path):
    recipe = write_recipe(tmp_path / "tiny.yaml", responses={"enabled": False})
    reading, terminal = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    process = subprocess.Popen(
        [sys.executable, "-c", "from dflash_pipeline.cli import main; main()", "run", recipe, "--plan-only", "--json"],
        env={**inherited, "DFLASH_STORAGE": str(tmp_path / "storage"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    seen = read_all(reading).decode(errors="replace")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, seen
    assert json.loads(out)["total_steps"] > 0
    assert "tokens: 100%" in seen
    assert "\r\x1b[Ktokens: " in seen


def read_all(descriptor: int) -> bytes:
    seen = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # How Linux says that nobody writes to this terminal any more.
            return seen
        if not part:
            return seen
        seen += part


@pytest.mark.parametrize(("watched", "start"), [(True, "\r\x1b[Kepoch 0"), (False, "epoch 0")])
def test_a_line_takes_the_place_of_the_bar_only_where_there_is_one(watched, start, monkeypatch):
    monkeypatch.setattr(terminal_log, "show_bars", lambda: watched)
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "run 7 - epoch 0", None, None)
    record.dagster_meta = {"orig_message": "epoch 0"}
    assert terminal_log._Plain().format(record) == start
