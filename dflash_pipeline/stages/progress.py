"""How far a long stage is: a bar for who watches a terminal, a line from time to time for a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from dflash_pipeline.stages.terminal import show_bars

Item = TypeVar("Item")
Tell = Callable[[str], object]

SECONDS_BETWEEN_LINES = 15.0


def followed(items: Iterable[Item], *, total: int, what: str, tell: Tell) -> Iterator[Item]:
    """The items, while a bar shows how many there were, and `tell` gets a line such as `progress_line` gives."""
    began = told = time.monotonic()
    bar = tqdm(items, total=total, desc=what, unit="row", disable=not show_bars())
    for done, item in enumerate(bar, start=1):
        yield item
        now = time.monotonic()
        if now - told >= SECONDS_BETWEEN_LINES:
            told = now
            tell(progress_line(what, done=done, total=total, seconds=now - began))


def progress_line(what: str, *, done: int, total: int, seconds: float) -> str:
    """How far it is, how fast, and how long it will take at that speed."""
    rate = done / seconds if seconds > 0 else 0.0
    left = f"{(total - done) / rate:,.0f} s left" if rate > 0 and done <= total else "time left unknown"
    return f"{what}: {done:,} of {total:,} rows, {rate:,.0f} rows/s, {left}"
