"""A launcher that keeps a measuring process beside nothing: `python -m tests.launch.early_launcher RUN_DIR WORK`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from dflash_pipeline.launch.early_side import measured_beside
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.early import EarlyWork

if __name__ == "__main__":
    run_dir, work = Path(sys.argv[1]), load_record(Path(sys.argv[2]), EarlyWork)
    with measured_beside(run_dir, work, environment=os.environ):
        time.sleep(600)
