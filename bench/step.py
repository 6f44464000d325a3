"""One training step on inputs from a file: drafter forward, loss, backward, clip at 1.0, AdamW. CPU, float32.

    python bench/step.py --inputs FILE --config FILE --threads 2 --steps 10 --warmup 2 --gamma 4 --lr 1e-3

FILE holds ids [R, S], loss_mask [R, S], lengths [R], feat [R, S, K*H], anchors and keep [R, A], embed and head [V, H]
and the first weights as `draft.<name>`; `bench/step_inputs.py` writes such files. The last line that is printed is a
JSON object: the first loss, seconds of each step by the clock and of CPU, and how far memory grew, in MiB.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import peak_bytes
from step_inputs import initial_weights, read_inputs
from torch import Tensor
from torch.nn import functional

from dflash_pipeline.model.anchors import supervised_slots
from dflash_pipeline.model.blocks import TrainingBatch, in_rows, place_blocks
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.objective import Objective, micro_batch_loss, planned_weights

Step = Callable[[], float]
"""One optimiser step; the loss before it."""
MAX_GRADIENT_NORM = 1.0


class GivenTarget:
    """The tables of a target whose features are given."""

    def __init__(self, embed: Tensor, head: Tensor) -> None:
        self._embed = embed
        self._head = head
        self.dtype = head.dtype
        self.vocab_size = head.shape[0]

    def embed(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self._embed)

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self._head)

    def through_head(self, gradient: Tensor) -> Tensor:
        return gradient @ self._head


def our_step(tensors: dict[str, Tensor], config: DrafterConfig, *, gamma: float, lr: float) -> Step:
    """The step as training takes it: what the loader prepares, and what follows."""
    drafter = Drafter(config)
    drafter.load_state_dict(initial_weights(tensors))
    target = GivenTarget(tensors["embed"], tensors["head"])
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=lr, fused=True)
    objective = Objective(weighting="decay", decay=gamma)

    def step() -> float:
        batch = batch_of(tensors)
        slots = supervised_slots(batch.loss_mask, batch.blocks, block_size=config.block_size)
        weights = planned_weights(slots, objective)
        optimizer.zero_grad(set_to_none=True)
        parts = micro_batch_loss(drafter, target, batch, weights, objective)
        loss = parts.loss_sum / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        return float(loss.detach())

    return step


def batch_of(tensors: dict[str, Tensor]) -> TrainingBatch:
    anchors = [row[kept].sort().values.numpy() for row, kept in zip(tensors["anchors"], tensors["keep"], strict=True)]
    documents = in_rows(tensors["lengths"].tolist())
    return TrainingBatch(
        input_ids=tensors["ids"],
        loss_mask=tensors["loss_mask"],
        documents=documents,
        blocks=place_blocks(anchors, documents, width=tensors["ids"].shape[1]),
        features=tensors["feat"],
    )


def timed(step: Step, *, warmup: int, steps: int) -> dict[str, object]:
    """The first loss, seconds of each step after the warm-up, and the growth of memory over all of them in MiB."""
    losses: list[float] = []
    wall: list[float] = []
    cpu: list[float] = []

    def run() -> None:
        for _ in range(warmup + steps):
            began, began_cpu = time.perf_counter(), time.process_time()
            losses.append(step())
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - began_cpu)

    peak = peak_bytes(run)
    return {"loss": losses[0], "wall": wall[warmup:], "cpu": cpu[warmup:], "peak_mib": round(peak / 2**20, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--gamma", type=float, required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    tensors, config = read_inputs(given.inputs, given.config)
    if given.steps < 1 or given.warmup < 0 or given.threads < 1:
        parser.error("--steps and --threads are at least 1, --warmup at least 0")
    if not (tensors["keep"].any() and tensors["loss_mask"].any()):
        parser.error(f"{given.inputs} has no anchor or no supervised token: there is no loss")
    step = our_step(tensors, config, gamma=given.gamma, lr=given.lr)
    print(json.dumps(timed(step, warmup=given.warmup, steps=given.steps)))


if __name__ == "__main__":
    main()
