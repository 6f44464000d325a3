"""The real rank, but that rank 1 falls asleep in the third step."""

from __future__ import annotations

import os
import sys
import time

from dflash_pipeline.launch import rank
from dflash_pipeline.launch.leaving import run_and_leave
from dflash_pipeline.training import loop

run_step = loop.run_step
steps = 0


def fall_asleep(*inputs, **options):
    global steps
    steps += 1
    if steps == 3 and os.environ["RANK"] == "1":
        time.sleep(600)
    return run_step(*inputs, **options)


if __name__ == "__main__":
    loop.run_step = fall_asleep
    run_and_leave(rank.main, sys.argv[1:])
