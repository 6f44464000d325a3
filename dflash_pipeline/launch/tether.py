"""Ties a command to the process that starts it: when that one dies, however it dies, the command gets SIGTERM.

    python -m dflash_pipeline.launch.tether PARENT_PID -- COMMAND [ARGUMENT …]

Only the standard library is imported: this process is replaced by the command within some 50 ms. The kernel sends the
signal when the *thread* that started this process ends, so start it from a thread that lives as long as the work.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EXIT_USAGE = 2
EXIT_ORPHANED = 128 + signal.SIGTERM
"""As a shell reports a command that SIGTERM ended: what would have happened a moment later."""


def main(arguments: list[str]) -> int:
    """Becomes the command; returns only to say why it could not."""
    if len(arguments) < 3 or not arguments[0].isdigit() or arguments[1] != "--":
        print("usage: python -m dflash_pipeline.launch.tether PARENT_PID -- COMMAND …", file=sys.stderr)
        return EXIT_USAGE
    parent, command = int(arguments[0]), arguments[2:]
    ask_for_signal_at_parents_death(signal.SIGTERM)
    # The parent may have died before the request: no signal would ever come.
    if os.getppid() != parent:
        return EXIT_ORPHANED
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127


def ask_for_signal_at_parents_death(number: signal.Signals) -> None:
    """The request outlives exec, and ends with a fork."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
