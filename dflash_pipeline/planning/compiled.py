"""Loops over samples, compiled by numba: once for a machine, cached beside the source or in the user's cache folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The same function as machine code. Without `fastmath`: sums are rounded alike on every machine."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function as plain Python, for values that no machine word holds."""
    return cast(Callable[..., Any], getattr(function, "py_func", function))
