"""One rank of `test_distributed.py`: a real step in a real process group. `python -m tests.training.gloo_rank OUT`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from dflash_pipeline.training.distributed import process_group
from dflash_pipeline.training.step import Wishes, run_step
from tests.tiny_models import strong_drafter, tiny_config, tiny_target
from tests.training.test_step import OBJECTIVE, STEP


def main(out: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with process_group(rank=rank, local_rank=rank, world_size=world_size, device="cpu") as ranks:
        drafter = strong_drafter(tiny_config())
        optimizer = torch.optim.SGD(drafter.parameters(), lr=0.0)
        model = ranks.parallel(drafter)
        results = [
            run_step(
                model,
                tiny_target(),
                optimizer,
                tuple(STEP[slot] for slot in ranks.share_of(4)),
                ranks=ranks,
                max_gradient_norm=1e9,
                objective=OBJECTIVE,
                # Only the last rank is asked, and only in the second step.
                wishes=Wishes(stop=rank == world_size - 1 and step == 1),
            )
            for step in range(2)
        ]
        sums = ranks.sum([rank, 0.1, 2.0**40 + rank])
        ranks.wait_for_all()
        found = {
            "losses": [r.loss.hex() for r in results],
            "acceptance": results[0].expected_acceptance,
            "norm": results[0].gradient_norm,
            "anchors": results[0].num_anchors,
            "stops": [r.wishes.stop for r in results],
            "sums": sums,
            "gradients": {name: p.grad.flatten().tolist() for name, p in drafter.named_parameters()},
        }
    (out / f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # As `launch.leaving` does, and for its reason.
