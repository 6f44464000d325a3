"""Looking at processes from tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path


def until(condition: Callable[[], object], *, seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_alive(pid: int) -> bool:
    """A zombie is not: it has ended, and waits for its parent to take note."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def pids(folder: Path, role: str) -> list[int]:
    return [int(path.name.removeprefix(f"{role}-")) for path in folder.glob(f"{role}-*")]


def alive(found: Iterable[int]) -> list[int]:
    return [pid for pid in found if is_alive(pid)]
