"""One rank of a slow test of `test_sharding.py`: `python -m tests.training.gloo_targets FOLDER`.

Every folder in FOLDER is a target, loaded whole and in parts. Both give the same bits: nothing is summed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from dflash_pipeline.training.distributed import Ranks, process_group
from dflash_pipeline.training.sharding import load_target

TAPS = (0, 1)


def main(folder: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with process_group(rank=rank, local_rank=rank, world_size=world_size, device="cpu") as ranks:
        for path in sorted(path for path in folder.iterdir() if path.is_dir()):
            compare(path, ranks)


def compare(path: Path, ranks: Ranks) -> None:
    whole = load_target(path, ranks, "none", tap_layer_ids=TAPS)
    parts = load_target(path, ranks, "fsdp", tap_layer_ids=TAPS)
    generator = torch.Generator().manual_seed(ranks.rank)
    for _ in range(2):
        ids = torch.randint(0, 61, (2, 7 + ranks.rank), generator=generator)
        assert torch.equal(parts.features(ids), whole.features(ids)), path.name
        ours, theirs = parts.features_and_last(ids), whole.features_and_last(ids)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), path.name
        assert torch.equal(parts.logits(ours[1]), whole.logits(theirs[1])), path.name
        assert torch.equal(parts.embed(ids), whole.embed(ids)), path.name


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # As `launch.leaving` does, and for its reason.
