"""One rank of `test_sharding.py`: attempts one after the other. `python -m tests.training.gloo_sharding FOLDER`.

`FOLDER/attempts.json` lists pairs of a launch file and the step to stop after; what was found is in `found-RANK.json`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.distributed import Ranks, process_group
from dflash_pipeline.training.loop import Trainer
from dflash_pipeline.training.settings import LaunchConfig
from tests.training.toy_run import Recorder


def main(folder: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.use_deterministic_algorithms(True)  # As the ranks of a real run do on the CPU: it fills memory with NaN.
    with process_group(rank=rank, local_rank=rank, world_size=world_size, device="cpu") as ranks:
        attempts = json.loads((folder / "attempts.json").read_text())
        found = [attempt(load_record(Path(launch), LaunchConfig), stop_after, ranks) for launch, stop_after in attempts]
    (folder / f"found-{rank}.json").write_text(json.dumps(found))


def attempt(config: LaunchConfig, stop_after: int, ranks: Ranks) -> dict:
    board, recorder = ProgressBoard(), Recorder()
    trainer = Trainer(
        config,
        ranks=ranks,
        tracker=recorder,
        attempt=1,
        stop_asked=lambda: board.read().run_steps_done + 1 >= stop_after,
        board=board,
        beat=lambda doing: None,
    )
    outcome = trainer.train()
    model = trainer.target._model
    return {
        "first": outcome.first_step,
        "last": outcome.last_step,
        "losses": [record.loss for record in recorder.steps],
        "norms": [record.gradient_norm for record in recorder.steps],
        "drafter": held(trainer.drafter),
        "moments": sum(
            local(state["exp_avg"]).numel() + local(state["exp_avg_sq"]).numel()
            for state in trainer.optimizer.state.values()
        ),
        "layers": held(model.base_model.layers),
        "table": held(model.get_input_embeddings()),
        "noted": noted(model.base_model),
    }


def held(module: nn.Module) -> int:
    """Numbers of a module's parameters that this rank keeps between steps."""
    return sum(local(parameter).numel() for parameter in module.parameters())


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def noted(module: nn.Module) -> int:
    """Passes that a sharded module remembers for a backward."""
    return len(module._get_fsdp_state()._comm_ctx.post_forward_order) if isinstance(module, FSDPModule) else 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # As `launch.leaving` does, and for its reason.
