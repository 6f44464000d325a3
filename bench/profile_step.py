"""Where the time of one training step goes: by part, and by kind of operation.

    python bench/profile_step.py small/b
    python bench/profile_step.py 8b/e --device cuda

Parts are timed one after the other, the median of several: placing blocks, masks, forward of the drafter, losses over
the vocabulary, backward, clip and AdamW. Operations are those of torch's profiler, by their own time. Sizes are
those of `bench/step_inputs.py`; features are given, so that the target is not part of it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from step import MAX_GRADIENT_NORM, GivenTarget, batch_of
from step_inputs import DIMS, SHAPES, initial_weights, read_inputs, write_inputs
from torch.profiler import ProfilerActivity, profile

from dflash_pipeline.model.anchors import supervised_slots
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.mixing import mixer_of
from dflash_pipeline.model.objective import Objective, block_embeddings, micro_batch_loss, planned_weights

KINDS = {
    "products": ("mm", "addmm", "bmm", "linear", "matmul"),
    "attention": ("scaled_dot_product", "flash_attention", "flex_attention", "_Piecewise"),
    "vocabulary": ("softmax", "logsumexp", "argmax", "gather", "scatter", "_SlotLosses", "exp_", "sub_"),
    "copies": ("copy_", "cat", "clone", "index", "_to_copy", "slice"),
    "optimiser": ("adamw", "AdamW", "foreach", "linalg_vector_norm"),
}
"""Of an operation, the first kind whose word is in its name."""


class Parts:
    """One step in parts, each a call that can be timed by itself."""

    def __init__(self, folder: Path, run: str, device: torch.device) -> None:
        dims, shape = DIMS[run.partition("/")[0]], SHAPES[run.partition("/")[2]]
        tensors, self.config = read_inputs(*write_inputs(folder, dims, shape))
        self.device = device
        self.tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        self.on_host = tensors
        self.drafter = Drafter(self.config)
        self.drafter.load_state_dict(initial_weights(tensors))
        self.drafter.to(device)
        self.target = GivenTarget(self.tensors["embed"], self.tensors["head"])
        self.objective = Objective(weighting="decay", decay=shape.gamma)
        self.optimizer = torch.optim.AdamW(self.drafter.parameters(), lr=1e-3, fused=True)
        host = batch_of(tensors)
        slots = supervised_slots(host.loss_mask, host.blocks, block_size=self.config.block_size)
        self.weights = planned_weights(slots, self.objective)
        self.batch = host.to(device)
        self.tokens = sum(shape.lengths)

    def place(self) -> None:
        batch = batch_of(self.on_host)
        supervised_slots(batch.loss_mask, batch.blocks, block_size=self.config.block_size)

    def masks(self) -> None:
        mixer_of(self.batch.blocks, self.config, dtype=torch.float32)

    def forward(self) -> None:
        embeddings = block_embeddings(self.target, self.batch, self.config)
        self.drafter(self.batch.features, embeddings, self.batch.blocks)

    def loss(self) -> torch.Tensor:
        return micro_batch_loss(self.drafter, self.target, self.batch, self.weights, self.objective).loss_sum

    def backward(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()

    def step(self) -> None:
        self.place()
        self.backward()
        self.update()


def seconds_of(work: Callable[[], object], device: torch.device, times: int) -> float:
    taken = []
    for _ in range(times + 1):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def by_part(parts: Parts, times: int) -> dict[str, float]:
    """Seconds of each part; parts that hold others have theirs taken off."""
    whole = {
        name: seconds_of(getattr(parts, name), parts.device, times)
        for name in ("place", "masks", "forward", "loss", "backward", "update")
    }
    return {
        "placing blocks": whole["place"],
        "masks": whole["masks"],
        "drafter forward": whole["forward"] - whole["masks"],
        "losses over the vocabulary, and their slopes": whole["loss"] - whole["forward"],
        "backward": whole["backward"] - whole["loss"],
        "clip and AdamW": whole["update"],
    }


def by_kind(parts: Parts, times: int) -> dict[str, float]:
    """Seconds a step of each kind of operation, by torch's profiler."""
    activities = [ProfilerActivity.CUDA if parts.device.type == "cuda" else ProfilerActivity.CPU]
    with profile(activities=activities) as found:
        for _ in range(times):
            parts.step()
        _wait(parts.device)
    kinds: dict[str, float] = defaultdict(float)
    for event in found.key_averages():
        own = event.self_device_time_total if parts.device.type == "cuda" else event.self_cpu_time_total
        kind = next((kind for kind, words in KINDS.items() if any(word in event.key for word in words)), "other")
        kinds[kind] += own / 1e6 / times
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def _print(title: str, seconds: dict[str, float]) -> None:
    total = sum(seconds.values())
    print(f"\n| {title} | ms | share |\n|---|---|---|")
    for name, value in seconds.items():
        print(f"| {name} | {value * 1e3:.1f} | {value / total:.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", default=["tiny/d", "small/b"], metavar="DIMS/SHAPE")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    unknown = [run for run in given.runs if run not in {f"{dims}/{shape}" for dims in DIMS for shape in SHAPES}]
    if unknown:
        parser.error(f"no sizes or rows {', '.join(unknown)}: sizes are {', '.join(DIMS)}, rows {', '.join(SHAPES)}")
    if given.device == "cuda" and not torch.cuda.is_available():
        print("skipped: no CUDA device is visible")
        return
    for run in given.runs:
        with tempfile.TemporaryDirectory() as folder:
            parts = Parts(Path(folder), run, torch.device(given.device))
        step = seconds_of(parts.step, parts.device, given.times)
        print(f"\n{run}: {parts.tokens} tokens, {step * 1e3:.1f} ms a step")
        _print("part", by_part(parts, given.times))
        _print("kind of operation", by_kind(parts, given.times))


if __name__ == "__main__":
    main()
