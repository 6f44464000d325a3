"""torchrun, with an end: `python -m dflash_pipeline.launch.agent` takes torchrun's own arguments.

It differs in three things: it does not outlive the process that started it by more than `LEAVE_SECONDS`; it shows no
traceback of its own when a rank has failed or it is asked to stop; and for a rank that was killed, and so could not say
why it ended, it says it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import main as torchrun

from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, leave_when_let_go
from dflash_pipeline.launch.torchrun import STOPPED

LEAVE_SECONDS = 40.0
"""More than ranks are given to save and leave, and than torchrun takes to kill those that do not."""


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 when all ranks ended with 0, 1 when one failed, 128 and the signal's number if asked to stop."""
    if lifeline := os.environ.get(LIFELINE_VARIABLE):
        leave_when_let_go(Path(lifeline), after_seconds=LEAVE_SECONDS)
    try:
        torchrun(list(arguments))
    except ChildFailedError as error:
        endings = {failure.exitcode for failure in error.failures.values()}
        # Asked to stop, one rank or all: they have saved. Who has not left by then hears torchrun's own SIGTERM.
        if STOPPED in endings and endings <= {STOPPED, -signal.SIGTERM}:
            return STOPPED
        _name_killed(Path(arguments[-1]).parent, error.failures)
        return 1  # torchrun has logged which rank and how it ended, and the rank itself why.
    except SignalException as request:
        return 128 + request.sigval
    return 0


def _name_killed(run_dir: Path, failures: Mapping[int, ProcessFailure]) -> None:
    for rank, failure in failures.items():
        # SIGTERM comes from torchrun itself, to those that are left when one has failed.
        if failure.exitcode >= 0 or failure.exitcode == -signal.SIGTERM:
            continue
        reason = "look for lack of memory" if failure.exitcode == -signal.SIGKILL else "look at the log above"
        text = f"rank {rank} was killed by {signal.Signals(-failure.exitcode).name} from outside: {reason}"
        (run_dir / f"killed-rank-{rank}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
