"""CPU seconds and peak memory of a call, and calls in a process of their own."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def cpu_seconds(work: Callable[[], Any]) -> float:
    """CPU time of this process: other programs on the machine disturb it less than the clock on the wall."""
    began = time.process_time()
    work()
    return time.process_time() - began


def best_in_turn(works: Mapping[str, Callable[[], Any]], *, times: int) -> dict[str, float]:
    """The least CPU seconds of each, after `times` rounds of all: what slows the machine slows all alike."""
    rounds = [{name: cpu_seconds(work) for name, work in works.items()} for _ in range(times)]
    return {name: min(seconds[name] for seconds in rounds) for name in works}


class PeakMemory:
    """Most memory that was resident since this was made, above what was resident then."""

    def __init__(self) -> None:
        gc.collect()
        self._before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # Sets the high-water mark to what is resident now.

    def grown(self) -> int:
        """In bytes."""
        return _resident("VmHWM") - self._before


def peak_bytes(work: Callable[[], Any]) -> int:
    """Most memory that was resident during the call, above what was resident before it."""
    memory = PeakMemory()
    kept = work()
    peak = memory.grown()
    del kept
    return peak


def in_a_new_process(
    function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None
) -> Any:
    """What a module's function returns in a fresh interpreter, with these environment variables besides."""
    before = dict(os.environ)
    os.environ.update(environment or {})
    try:
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _resident(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
