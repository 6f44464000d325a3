"""Whether a person is watching."""

from __future__ import annotations

import sys


def show_bars() -> bool:
    """Progress bars are for terminals only: a log file or a pipe gets none."""
    return sys.stderr.isatty()
