"""What planning costs: time against an argsort, memory, compilation, manifests on disk, boundaries."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow.parquet as pq
from batching_specs import TOKEN_BUDGET, reference_spec
from measure import best_in_turn, cpu_seconds, in_a_new_process, peak_bytes
from reference_lengths import reference_lengths

from dflash_pipeline.contracts.batching import BatchingSpec, Objective, Strategy
from dflash_pipeline.contracts.corpus import LengthStatistics, SampleLengths
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.planning.boundaries import optimise_boundaries, padding_efficiency
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.store.plans import load_epoch, save_epoch

TIMES = 5
PLANNED: tuple[tuple[Strategy, int], ...] = (("window", 1), ("window", 2), ("varlen", 1), ("varlen", 2))
"""Strategies, each with micro-batches per rank, that the goals of time and memory are about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Where the lengths come from, so that another process can read them too."""

    lengths: Path | None
    num_samples: int
    seed: int

    def samples(self) -> SampleLengths:
        lengths = reference_lengths(self.num_samples, seed=self.seed) if self.lengths is None else _read(self.lengths)
        return SampleLengths(snapshot="bench", num_tokens=lengths, num_supervised=lengths)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanningCost:
    """One epoch of one strategy, planned in this process after warm-up."""

    strategy: str
    micro_batches_per_rank: int
    cpu_ms: float
    argsort_ms: float
    """numpy's stable argsort of the int32 lengths, taken in turn with it."""
    ratio: float
    peak_bytes_a_sample: float
    """Above the inputs, in a fresh process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundaryCost:
    """One optimum, after the histogram."""

    objective: str
    buckets: int
    ms: float
    expected_efficiency: float
    boundaries: tuple[int, ...]


def planning_costs(corpus: Corpus, samples: SampleLengths) -> list[PlanningCost]:
    short, found = samples.num_tokens.astype(np.int32), []
    for strategy, per_rank in PLANNED:
        spec = reference_spec(strategy, micro_batches_per_rank=per_rank)
        plan = _planner(samples, spec)
        plan()
        best = best_in_turn({"plan": plan, "argsort": lambda: np.argsort(short, kind="stable")}, times=TIMES)
        found.append(
            PlanningCost(
                strategy=strategy,
                micro_batches_per_rank=per_rank,
                cpu_ms=1e3 * best["plan"],
                argsort_ms=1e3 * best["argsort"],
                ratio=best["plan"] / best["argsort"],
                peak_bytes_a_sample=in_a_new_process(_peak, corpus, spec) / samples.num_tokens.size,
            )
        )
    return found


def compilation_seconds() -> dict[str, float]:
    """CPU seconds of a machine's first epoch of a few samples, and of the first one of a later process."""
    with tempfile.TemporaryDirectory(prefix="dflash-numba-") as cache:
        found = {
            (when, strategy): in_a_new_process(_first_use, strategy, environment={"NUMBA_CACHE_DIR": cache})
            for strategy in ("window", "varlen")
            for when in ("first use", "next process")
        }
    return {f"{strategy}, {when}": seconds for (when, strategy), seconds in found.items()}


def manifest_ms(samples: SampleLengths, spec: BatchingSpec) -> dict[str, float]:
    """An epoch written, and read back by a rank: by the clock, syncs to disk included, and by CPU time."""
    manifest, rounds = build_epoch_manifest(samples, spec, epoch=0), []
    with tempfile.TemporaryDirectory(prefix="dflash-bench-") as name:
        for _ in range(TIMES):
            began, cpu = time.perf_counter(), time.process_time()
            save_epoch(Path(name), manifest)
            written = time.perf_counter()
            load_epoch(Path(name), 0)
            ended = time.perf_counter()
            rounds.append((ended - began, written - began, ended - written, time.process_time() - cpu))
        (file,) = Path(name).iterdir()
        size = file.stat().st_size
    clock, write, read, processor = (1e3 * x for x in min(rounds))
    return {
        "clock": clock,
        "write": write,
        "read": read,
        "cpu": processor,
        "bytes_a_sample": size / manifest.num_samples,
    }


def six_epochs_seconds(samples: SampleLengths, spec: BatchingSpec) -> dict[str, float]:
    """Six epochs planned and written, by the clock and by CPU time."""
    with tempfile.TemporaryDirectory(prefix="dflash-bench-") as name:
        began, cpu = time.perf_counter(), time.process_time()
        for epoch in range(6):
            save_epoch(Path(name), build_epoch_manifest(samples, spec, epoch=epoch))
        return {"clock": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def boundary_costs(statistics: LengthStatistics) -> list[BoundaryCost]:
    return [_boundary_cost(statistics, objective, k) for objective in get_args(Objective) for k in (6, 32)]


def _boundary_cost(statistics: LengthStatistics, objective: Objective, buckets: int) -> BoundaryCost:
    budget = TOKEN_BUDGET if objective == "batch-max" else None

    def optimum() -> tuple[int, ...]:
        return optimise_boundaries(statistics, num_buckets=buckets, objective=objective, token_budget=budget)

    boundaries = optimum()
    return BoundaryCost(
        objective=objective,
        buckets=buckets,
        ms=1e3 * min(cpu_seconds(optimum) for _ in range(TIMES)),
        expected_efficiency=padding_efficiency(statistics, boundaries, token_budget=budget),
        boundaries=boundaries,
    )


def _planner(samples: SampleLengths, spec: BatchingSpec) -> Callable[[], EpochManifest]:
    return lambda: build_epoch_manifest(samples, spec, epoch=0)


def _peak(corpus: Corpus, spec: BatchingSpec) -> int:
    samples = corpus.samples()
    build_epoch_manifest(_few(), spec, epoch=0)  # Loads what is compiled.
    return peak_bytes(_planner(samples, spec))


def _first_use(strategy: Strategy) -> float:
    return cpu_seconds(_planner(_few(), reference_spec(strategy)))


def _few() -> SampleLengths:
    lengths = 1 + np.arange(1_000) % 900
    return SampleLengths(snapshot="few", num_tokens=lengths, num_supervised=lengths)


def _read(path: Path) -> np.ndarray:
    lengths = pq.read_table(path)["length"].to_numpy() if path.suffix == ".parquet" else np.load(path)
    return lengths.astype(np.int64)
