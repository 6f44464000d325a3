"""A rank without a model: does what the name of its configuration file says."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, watch_lifeline
from dflash_pipeline.launch.torchrun import rank_error_path

config = Path(sys.argv[1])
rank = int(os.environ["RANK"])
if config.stem == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    watch_lifeline(Path(os.environ[LIFELINE_VARIABLE]), grace_seconds=1.0)
names = ("WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "GREETING")
(config.parent / f"rank-{rank}").write_text(" ".join(os.environ[name] for name in names))
print(f"rank {rank} says hello")
if config.stem == "fails":
    time.sleep(0.3 * (1 - rank))
    rank_error_path(config.parent, rank=rank).write_text("\n".join(f"rank {rank} line {n}" for n in range(30)))
    sys.exit(7)
if config.stem == "refuses" and rank == 1:
    rank_error_path(config.parent, rank=rank).write_text("there: that; do this")
    sys.exit(2)
if config.stem == "killed" and rank == 0:
    rank_error_path(config.parent, rank=rank).write_text("the connection was closed by its peer")
if config.stem == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if config.stem == "stopped":
    sys.exit(143)
if config.stem in ("waits", "deaf", "killed", "refuses"):
    (config.parent / f"pid-{os.getpid()}").touch()
    time.sleep(60)
