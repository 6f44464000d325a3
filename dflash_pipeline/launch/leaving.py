"""How a rank's process ends: at once, past the interpreter's own end.

Destroying a gloo group can wait forever: its destructor holds Python's lock and wants the group's, whose holder, a gloo
thread that lets go of a tensor, wants Python's. Everything that must be written is written before.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn


def run_and_leave(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> NoReturn:
    """Run `main` and end the process with its exit code; an error it lets out is shown, and is exit code 1."""
    try:
        code = main(arguments)
    except BaseException:
        traceback.print_exc()
        code = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
