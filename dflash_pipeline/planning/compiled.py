"""Loops over samples, compiled by numba on first use and kept in the user's cache folder.

Never beside the source: an installation may be read-only, and is not ours to write to. `NUMBA_CACHE_DIR` wins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The same function as machine code. Without `fastmath`: sums are rounded alike on every machine."""
    try:
        return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:  # No folder to keep it in can be written: then it is compiled in each process.
        return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function as plain Python, for values that no machine word holds."""
    return cast(Callable[..., Any], getattr(function, "py_func", function))


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "dflash_pipeline" / "numba"


# Numba makes this setting as it is imported, where no type checker sees it.
if not numba.config.CACHE_DIR:  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]
