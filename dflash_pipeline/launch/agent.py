"""torchrun, with an end: `python -m dflash_pipeline.launch.agent` takes torchrun's own arguments.

It differs in one thing: it does not outlive the process that started it by more than `LEAVE_SECONDS`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch.distributed.run import main

from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, leave_when_let_go

LEAVE_SECONDS = 40.0
"""More than ranks are given to save and leave, and than torchrun takes to kill those that do not."""

if __name__ == "__main__":
    if lifeline := os.environ.get(LIFELINE_VARIABLE):
        leave_when_let_go(Path(lifeline), after_seconds=LEAVE_SECONDS)
    main(sys.argv[1:])
