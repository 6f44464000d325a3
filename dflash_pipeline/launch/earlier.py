"""Ranks of the same run that an earlier launch has left behind: they save and leave, and only then may others begin."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

from dflash_pipeline.contracts.errors import Failed

WAIT_SECONDS = 60.0
"""Longer than ranks whose launcher is gone take to leave."""
LOOK_SECONDS = 0.5

logger = logging.getLogger(__name__)


def wait_for_earlier_ranks(config: Path, *, module: str, seconds: float = WAIT_SECONDS) -> None:
    """Returns once no process that runs `module` was given the file `config`.

    A launcher that was killed leaves its ranks some 25 s to save: begun meanwhile, two trainings would write one
    folder. Failed, with their process ids, when some are still there after `seconds`.
    """
    deadline, told = time.monotonic() + seconds, False
    while left := earlier_ranks(config, module=module):
        if time.monotonic() > deadline:
            raise Failed(
                f"processes {left} still train this run",
                where=str(config.parent),
                fix="wait until that training has ended or stop it; `dflash doctor --repair` stops ranks left behind",
            )
        if not told:
            logger.info("waiting for processes %s, which still train this run", left)
            told = True
        time.sleep(LOOK_SECONDS)


def earlier_ranks(config: Path, *, module: str) -> list[int]:
    """Their process ids. One that has ended and waits to be reaped has no command line."""
    wanted = {module.encode(), str(config).encode()}
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if wanted <= set(line.read_bytes().split(b"\0")):
                found.append(int(line.parent.name))
    return sorted(found)
