"""One rank of `test_verdict.py`: `python -m tests.training.gloo_slow CONFIG OUT`; slow exchange, then a slow rank."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dflash_pipeline.contracts.events import VerdictRecord
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.alarm_tracker import AlarmTracker
from dflash_pipeline.training.alarms import NO_FACTS, AlarmState
from dflash_pipeline.training.distributed import Ranks, process_group
from dflash_pipeline.training.loop import Trainer
from dflash_pipeline.training.settings import LaunchConfig
from tests.training.toy_run import Recorder

SECONDS = 0.1


def slowed(owner: type, name: str) -> Callable[[], None]:
    """Every call of a method takes `SECONDS` longer, until what is returned is called."""
    usual = getattr(owner, name)

    def slow(*arguments, **named):
        time.sleep(SECONDS)
        return usual(*arguments, **named)

    setattr(owner, name, slow)
    return lambda: setattr(owner, name, usual)


def limits(config: LaunchConfig, ranks: Ranks, what: str) -> list[str]:
    """What the verdicts of one training say is its limit."""
    restore = [slowed(Ranks, "total")] if what == "communication" else []
    restore += [slowed(FrozenTarget, "features")] if what == "imbalance" and ranks.rank == 1 else []
    recorder = Recorder()
    trainer = Trainer(
        replace(config, run_dir=f"{config.run_dir}-{what}"),
        ranks=ranks,
        tracker=AlarmTracker(recorder, state=AlarmState(), look=lambda: NO_FACTS),
        attempt=1,
        stop_asked=lambda: False,
        board=ProgressBoard(),
        beat=lambda doing: None,
    )
    trainer.train()
    for put_back in restore:
        put_back()
    return [record.limit for record in recorder.others if isinstance(record, VerdictRecord)]


def main(config: LaunchConfig, out: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with process_group(rank=rank, local_rank=rank, world_size=world_size, device="cpu") as ranks:
        found = {what: limits(config, ranks, what) for what in ("communication", "imbalance")}
    if rank == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(load_record(Path(sys.argv[1]), LaunchConfig), Path(sys.argv[2]))
    os._exit(0)  # As `launch.leaving` does, and for its reason.
