"""Whether a person is watching."""

from __future__ import annotations

import sys
from functools import cache


@cache
def show_bars() -> bool:
    """Progress bars are for terminals only: a log file or a pipe gets none.

    Answered once, so ask before Dagster's run begins: while a step runs, a file stands in for standard error, whose
    lines are passed on to the terminal.
    """
    return sys.stderr.isatty()
