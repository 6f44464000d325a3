"""Loops are compiled once and kept in the user's folder; where none can be written, in each process."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from dflash_pipeline.planning import compiled as module
from dflash_pipeline.planning.compiled import as_written, compiled

needs_machine_code = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="NUMBA_DISABLE_JIT is set")


def share(part: float, whole: float) -> float:
    return part / whole


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def check(function: Callable[..., Any]) -> None:
    """Machine code that divides as numpy does and lets other threads run."""
    assert function(1.0, 4.0) == 0.25
    assert function(1.0, 0.0) == math.inf
    assert function.targetoptions["nogil"] is True
    assert as_written(function) is share


@needs_machine_code
def test_machine_code_is_kept_in_the_folder(folder):
    check(compiled(share))
    assert list(folder.rglob("*.nbi"))


@needs_machine_code
def test_without_a_folder_it_is_compiled_all_the_same(folder, monkeypatch):
    njit = numba.njit

    def no_folder(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'share': no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", no_folder)
    check(compiled(share))
    assert not list(folder.rglob("*.nbi"))


def test_as_written_loops_run_on_whole_numbers_of_any_size():
    assert as_written(module.compiled(share))(2**80, 2**79) == 2
    assert as_written(np.add) is np.add


def test_the_folder_is_the_users(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "~/other")
    assert module._cache_folder() == Path.home() / "other" / "dflash_pipeline" / "numba"
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("XDG_CACHE_HOME")
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert module._cache_folder() == Path.home() / ".cache" / "dflash_pipeline" / "numba"
