"""One rank of a toy run in a real process group: `python -m tests.training.gloo_run CONFIG STOP_AFTER OUT`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.distributed import process_group
from dflash_pipeline.training.loop import Trainer
from dflash_pipeline.training.settings import LaunchConfig
from tests.training.toy_run import Recorder


def main(config: LaunchConfig, stop_after: int, out: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with process_group(rank=rank, local_rank=rank, world_size=world_size, device="cpu") as ranks:
        board, recorder = ProgressBoard(), Recorder()
        trainer = Trainer(
            config,
            ranks=ranks,
            tracker=recorder,
            attempt=1,
            # Asked on the last rank only: what one is asked, all do.
            stop_asked=lambda: rank == world_size - 1 and board.read().run_steps_done + 1 >= stop_after,
            board=board,
            beat=lambda doing: None,
        )
        outcome = trainer.train()
        if ranks.is_first:
            found = {"first": outcome.first_step, "last": outcome.last_step, "losses": recorder.losses}
            out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(load_record(Path(sys.argv[1]), LaunchConfig), int(sys.argv[2]), Path(sys.argv[3]))
    os._exit(0)  # As `launch.leaving` does, and for its reason.
