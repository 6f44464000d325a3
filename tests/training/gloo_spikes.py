"""One rank of `test_spike_ranks.py`: `python -m tests.training.gloo_spikes CONFIG OUT`. One rank has bad data."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from dflash_pipeline.contracts.manifest import MicroBatch
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.collate import PreparedBatch
from dflash_pipeline.training.distributed import process_group
from dflash_pipeline.training.loop import Trainer
from dflash_pipeline.training.settings import LaunchConfig
from tests.training.toy_run import Recorder

BAD_STEP = 3


def main(config: LaunchConfig, out: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with process_group(rank=rank, local_rank=rank, world_size=world_size, device="cpu") as ranks:
        recorder = Recorder()
        trainer = Trainer(
            config,
            ranks=ranks,
            tracker=recorder,
            attempt=1,
            stop_asked=lambda: False,
            board=ProgressBoard(),
            beat=lambda doing: None,
        )
        usual = trainer.collate

        def collate(source: MicroBatch) -> PreparedBatch:
            prepared = usual(source)
            bad = rank == world_size - 1 and (source.epoch, source.step) == (0, BAD_STEP)
            return replace(prepared, weights=prepared.weights * torch.nan) if bad else prepared

        trainer.collate = collate
        trainer.train()
    found = {"spikes": [asdict(record) for record in recorder.spikes], "state": asdict(trainer.reporter.spikes)}
    (out / f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(load_record(Path(sys.argv[1]), LaunchConfig), Path(sys.argv[2]))
    os._exit(0)  # As `launch.leaving` does, and for its reason.
