"""What a rank waits for: opening its epoch, and each step's micro-batches, with 902,000 samples on disk.

    python bench/loader.py

Samples have the reference lengths divided by 16, so that their tokens fit on a small disk: opening and planning depend
on how many there are, not on how long they are. One rank of eight takes its micro-batches as in training, prepared
ahead in a thread, while the training thread does a stated share of the work of a step: matrix products for so many
milliseconds. What it waits beyond its own work is the loader's.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from batching_specs import RANKS, TOKEN_BUDGET, reference_spec
from reference_lengths import NUM_SAMPLES, reference_lengths

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.plan import Position, RunPlan
from dflash_pipeline.contracts.sample import Sample
from dflash_pipeline.model.objective import Objective
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.store.plans import load_plan, load_planned_epoch, plan_folder, save_epoch, seal_plan
from dflash_pipeline.store.tokens import TokenStore, write_shards
from dflash_pipeline.training.collate import AnchorRule, Collator
from dflash_pipeline.training.loader import EpochLoader

SHRUNK = 16
OPENING_GOAL, WAITING_GOAL = 0.2, 0.01


def _samples(lengths: npt.NDArray[np.int64]) -> Iterator[Sample]:
    tokens = np.random.default_rng(0).integers(0, 1000, int(lengths.max())).astype(np.int32)
    for number, length in enumerate(lengths.tolist()):
        yield Sample(
            conversation_id=str(number), split="train", input_ids=tokens[:length], spans=((length // 4, length),)
        )


def prepare(folder: Path, spec: BatchingSpec, lengths: npt.NDArray[np.int64]) -> tuple[Path, RunPlan, tuple[str, ...]]:
    """Shards and a sealed plan of one epoch."""
    shards = tuple(shard.name for shard in write_shards(folder, _samples(lengths)))
    samples = SampleLengths(snapshot="bench", num_tokens=lengths, num_supervised=lengths - lengths // 4)
    plan_dir = plan_folder(folder / "plans", snapshot="bench", spec=spec)
    manifest = build_epoch_manifest(samples, spec, epoch=0)
    save_epoch(plan_dir, manifest)
    plan = RunPlan(snapshot="bench", spec=spec, epochs=(manifest.summary(),))
    seal_plan(plan_dir, plan)
    return plan_dir, plan, shards


def opening_seconds(folder: Path, plan_dir: Path, plan: RunPlan, shards: tuple[str, ...], times: int) -> list[float]:
    """From nothing to the first micro-batch's samples: plan, epoch, token store, a sample of the first step."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        manifest = load_planned_epoch(plan_dir, load_plan(plan_dir, plan.fingerprint), 0)
        store = TokenStore(folder, shards)
        store.input_ids(int(manifest.micro_batch(0, 0).sample_ids[0]))
        taken.append(time.perf_counter() - began)
    return taken


def waiting(loader: EpochLoader, steps: int, work_seconds: float) -> tuple[list[float], float]:
    """Seconds waited for each of the steps after the first, and seconds worked in them."""
    a = torch.randn(512, 512)
    waits, worked = [], 0.0
    for prepared in itertools.islice(loader, steps + 1):
        waits.append(prepared.wait_seconds)
        began = time.perf_counter()
        while time.perf_counter() - began < work_seconds:
            a @ a
        worked += time.perf_counter() - began
    return waits[1:], worked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--work-ms", type=float, default=100.0, help="of a step, beside which the loader prepares")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lengths = np.maximum(reference_lengths(given.samples) // SHRUNK, 4)
    spec = reference_spec("window")
    with tempfile.TemporaryDirectory(prefix="dflash-bench-") as name:
        folder = Path(name)
        plan_dir, plan, shards = prepare(folder, spec, lengths)
        opened = opening_seconds(folder, plan_dir, plan, shards, 7)
        collate = Collator(
            tokens=TokenStore(folder, shards),
            anchors=AnchorRule(share=0.125, most=512, seed=0),
            block_size=16,
            objective=Objective(weighting="decay", decay=7.0),
        )
        manifest = load_planned_epoch(plan_dir, plan, 0)
        loader = EpochLoader(
            manifest, at=Position(epoch=0, step=0), slots=range(0, spec.slots_per_step, RANKS), collate=collate
        )
        if manifest.num_steps <= given.steps or given.steps < 1:
            raise SystemExit(f"{given.steps} steps after the first of an epoch of {manifest.num_steps}: give others")
        waits, worked = waiting(loader, given.steps, given.work_ms / 1e3)
    share, opening = sum(waits) / (sum(waits) + worked), statistics.median(opened)
    print(f"{given.samples:,} samples, {len(shards)} shards, micro-batches of up to {TOKEN_BUDGET:,} tokens")
    print(f"a rank opens its epoch in {opening * 1e3:.0f} ms ({_met(opening < OPENING_GOAL)}: below 200)")
    print(
        f"{len(waits)} steps with {given.work_ms:.0f} ms of work each: it waits {share:.2%} of the time, at most "
        f"{max(waits) * 1e3:.1f} ms ({_met(share < WAITING_GOAL)}: below 1 %)"
    )


def _met(goal: bool) -> str:
    return "goal met" if goal else "goal NOT met"


if __name__ == "__main__":
    main()
