"""One training step side by side with SpecForge's and speculators', everyone in turns in one run.

    make step-peers
    PYTHONPATH=.oracle python bench/step_vs_peers.py --rounds 12 tiny/a small/b

Each trainer lives in a process of its own, with its own memory and the same number of threads; one takes a step while
the others wait. Printed are useful tokens a second (real tokens of the rows over the median step), what they are of
the best other's, and how far memory grew.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from measure import PeakMemory
from step_inputs import DIMS, SHAPES, Shape, read_inputs, write_inputs
from step_peers import PEERS, step_of

RUNS = ("tiny/a", "tiny/b", "tiny/d", "small/a", "small/b", "tiny/e", "tiny/f", "tiny/g")
WARMUP = 2
SINGLE_GOAL, UNEQUAL_GOAL = 1.05, 1.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    loss: float
    wall: float
    grown: int
    """Bytes, over all steps so far."""


class Contestant:
    """A trainer in its own process, which takes a step when told to."""

    def __init__(self, name: str, folder: Path, shape: Shape, threads: int) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, folder, shape.gamma, threads), daemon=True)
        self._process.start()
        self._pipe.recv()

    def leave(self) -> None:
        self._process.kill()
        self._process.join()

    def step(self) -> Taken:
        self._pipe.send("step")
        taken: Taken = self._pipe.recv()
        return taken


def _serve(pipe: Connection, name: str, folder: Path, gamma: float, threads: int) -> None:
    torch.set_num_threads(threads)
    tensors, config = read_inputs(folder / "inputs.safetensors", folder / "config.json")
    step = step_of(name, tensors, config, gamma=gamma, lr=1e-3)
    memory = PeakMemory()
    pipe.send("ready")
    while True:
        pipe.recv()
        began = time.perf_counter()
        loss = step()
        wall = time.perf_counter() - began
        pipe.send(Taken(loss=loss, wall=wall, grown=memory.grown()))


def compare(run: str, *, rounds: int, threads: int) -> None:
    dims, shape = DIMS[run.partition("/")[0]], SHAPES[run.partition("/")[2]]
    names = ("ours", *PEERS)
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), dims, shape)
        contestants = {name: Contestant(name, Path(folder), shape, threads) for name in names}
        taken: dict[str, list[Taken]] = {name: [] for name in names}
        for turn in range(WARMUP + rounds):
            for at in range(len(names)):
                name = names[(at + turn) % len(names)]
                taken[name].append(contestants[name].step())
        for contestant in contestants.values():
            contestant.leave()
    _print(run, shape, taken)


def _print(run: str, shape: Shape, taken: dict[str, list[Taken]]) -> None:
    tokens = sum(shape.lengths)
    rates = {name: tokens / statistics.median(t.wall for t in steps[WARMUP:]) for name, steps in taken.items()}
    grown = {name: steps[-1].grown / 2**20 for name, steps in taken.items()}
    best, least = max(rates[name] for name in PEERS), min(grown[name] for name in PEERS)
    goal = SINGLE_GOAL if len(shape.lengths) == 1 else UNEQUAL_GOAL
    ratio = rates["ours"] / best
    print(f"\n{run}: {len(shape.lengths)} rows, {tokens} tokens, {shape.anchors} anchors a row, block {shape.block}")
    for name, rate in rates.items():
        first = taken[name][0].loss
        print(
            f"  {name:24s}{rate:10,.0f} tokens/s  {rate / best:5.2f} x  {grown[name]:7.0f} MiB  first loss {first:.6f}"
        )
    met = "met" if ratio >= goal else "NOT met"
    memory = "below" if grown["ours"] < least else "NOT below"
    print(f"  {ratio:.2f} x the best other, goal {goal} {met}; memory {memory} theirs", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", default=RUNS, metavar="DIMS/SHAPE", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    for run in given.runs:
        compare(run, rounds=given.rounds, threads=given.threads)


if __name__ == "__main__":
    main()
