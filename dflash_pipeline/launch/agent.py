"""torchrun, with an end: `python -m dflash_pipeline.launch.agent` takes torchrun's own arguments.

It differs in two things: it does not outlive the process that started it by more than `LEAVE_SECONDS`, and it shows no
traceback of its own when a rank has failed or it is asked to stop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, leave_when_let_go

LEAVE_SECONDS = 40.0
"""More than ranks are given to save and leave, and than torchrun takes to kill those that do not."""


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 when all ranks ended with 0, 1 when one failed, 128 and the signal's number if asked to stop."""
    if lifeline := os.environ.get(LIFELINE_VARIABLE):
        leave_when_let_go(Path(lifeline), after_seconds=LEAVE_SECONDS)
    try:
        torchrun(list(arguments))
    except ChildFailedError:
        return 1  # torchrun has logged which rank and how it ended, and the rank itself why.
    except SignalException as request:
        return 128 + request.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
