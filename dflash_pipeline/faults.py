"""Named points before and after each durable act, at which a test may kill the process or fail a write.

Nothing happens unless `DFLASH_FAULT` is set, which only the faults harness does: `kill:NAME` or `kill:NAME:N` kills
this process with SIGKILL at the N-th passing (from 1) of the point NAME; `hold:NAME` or `hold:NAME:N` stops it there
with SIGSTOP, until SIGCONT; `enospc:N` makes the N-th durable write fail as a full disk would; `enospc:N+` makes it and
every later one fail.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter

_SENT = {"kill": signal.SIGKILL, "hold": signal.SIGSTOP}
_ORDER = os.environ.get("DFLASH_FAULT", "")
_passed: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Mark a point `stage.before-act` or `stage.after-act`."""
    act, wanted, *count = _ORDER.split(":") if _ORDER else ("", "")
    if act not in _SENT:
        return
    _passed[name] += 1
    if name == wanted and _passed[name] == int(count[0] if count else 1):
        os.kill(os.getpid(), _SENT[act])


def fault_write() -> None:
    """Mark one durable write: called by the file layer before it writes."""
    if not _ORDER.startswith("enospc:"):
        return
    _passed["write"] += 1
    wanted = _ORDER.removeprefix("enospc:")
    n, forever = int(wanted.rstrip("+")), wanted.endswith("+")
    if _passed["write"] == n or (forever and _passed["write"] > n):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
