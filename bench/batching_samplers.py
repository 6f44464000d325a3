"""Other packages' samplers, each asked for two epochs of micro-batches over the same lengths, by its own public way.

An import that fails is an `ImportError`, and says which package is missing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
from batching_specs import RANKS, TOKEN_BUDGET
from measure import cpu_seconds

from dflash_pipeline.contracts.manifest import Layout

HF_SAMPLES = 16
"""Samples of a micro-batch, where a sampler counts samples and not tokens."""

MicroBatches = list[np.ndarray]
"""Sample ids of each, step by step, rank by rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """Two epochs, and the CPU seconds of one, as one rank spends them."""

    epochs: tuple[MicroBatches, MicroBatches]
    seconds: float
    layout: Layout
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """`samples`: on how many lengths it is measured; time is extrapolated in proportion where that is not all."""

    name: str
    samples: int | None
    plan: Callable[[np.ndarray], Planned]


def length_grouped(lengths: np.ndarray) -> Planned:
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    as_list = lengths.tolist()

    def epoch(number: int) -> MicroBatches:
        generator = torch.Generator().manual_seed(number)
        order = list(LengthGroupedSampler(HF_SAMPLES, lengths=as_list, generator=generator))
        return [np.array(order[at : at + HF_SAMPLES]) for at in range(0, len(order), HF_SAMPLES)]

    return _timed(epoch, layout="rows", note=f"{HF_SAMPLES} samples a micro-batch, whatever their length")


def first_fit(lengths: np.ndarray) -> Planned:
    return _multipack(lengths, sequential=False, note="first fit in groups of 100,000, one process")


def next_fit(lengths: np.ndarray) -> Planned:
    return _multipack(lengths, sequential=True, note="next fit in order")


def _multipack(lengths: np.ndarray, *, sequential: bool, note: str) -> Planned:
    import torch
    from axolotl.utils.samplers.multipack import MultipackBatchSampler
    from torch.utils.data import RandomSampler

    def sampler(number: int, of: np.ndarray) -> Any:
        order = RandomSampler(range(of.size), generator=torch.Generator().manual_seed(number))
        return MultipackBatchSampler(
            order,
            batch_size=1,
            batch_max_len=TOKEN_BUDGET,
            lengths=of,
            bin_size=TOKEN_BUDGET,
            sequential=sequential,
            num_processes=1,
        )

    list(sampler(0, lengths[:100]))  # Compiles.
    return _timed(
        lambda number: [np.array(bin_) for (bin_,) in sampler(number, lengths)], layout="documents", note=note
    )


def multipack_v2(lengths: np.ndarray) -> Planned:
    sampler = _module("speculators", "train/distributed_batch_sampler.py").MultipackDistributedBatchSamplerV2

    def of_rank(rank: int, number: int) -> list[np.ndarray]:
        made = sampler(TOKEN_BUDGET, lengths, RANKS, rank, seed=0)
        made.set_epoch(number)
        return list(made)

    def epoch(number: int) -> MicroBatches:
        by_rank = [of_rank(rank, number) for rank in range(RANKS)]
        return [batch for step in zip(*by_rank, strict=True) for batch in step]

    seconds = min(cpu_seconds(lambda: of_rank(0, 0)) for _ in range(2))
    return Planned(epochs=(epoch(0), epoch(1)), seconds=seconds, layout="documents", note="every rank repeats it")


def best_fit_decreasing(lengths: np.ndarray) -> Planned:
    return _bfd(lengths, chunk=1_000, note="chunks of 1,000 samples, the default; packed once, moves the tokens too")


def best_fit_decreasing_whole(lengths: np.ndarray) -> Planned:
    return _bfd(lengths, chunk=lengths.size, note="all samples in one chunk; packed once, moves the tokens too")


def _bfd(lengths: np.ndarray, *, chunk: int, note: str) -> Planned:
    import pyarrow as pa
    from datasets import Dataset, disable_progress_bars
    from trl.data_utils import pack_dataset

    disable_progress_bars()
    # Each token is its sample's id, so that packed rows tell what is in them.
    tokens = np.repeat(np.arange(lengths.size, dtype=np.int32), lengths)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, tokens)})
    order = np.random.default_rng(0)

    def epoch(number: int) -> MicroBatches:
        packed = pack_dataset(
            Dataset(table), TOKEN_BUDGET, "bfd", map_kwargs={"batch_size": chunk, "keep_in_memory": True}
        )
        rows = packed.data["input_ids"].combine_chunks()
        ids, starts = rows.flatten().to_numpy(), rows.offsets.to_numpy()
        return [_runs(ids[a:b]) for a, b in pairwise(starts.tolist())]

    packed: list[MicroBatches] = []
    seconds = cpu_seconds(lambda: packed.append(epoch(0)))
    # Packs are made once; the trainer shuffles their order.
    served = [[packed[0][i] for i in order.permutation(len(packed[0]))] for _ in range(2)]
    return Planned(epochs=(served[0], served[1]), seconds=seconds, layout="documents", note=note)


def _runs(ids: np.ndarray) -> np.ndarray:
    """Each id once: a sample's tokens lie side by side."""
    return ids[np.concatenate(([True], ids[1:] != ids[:-1]))]


def _timed(epoch: Callable[[int], MicroBatches], *, layout: Layout, note: str) -> Planned:
    made: list[MicroBatches] = []
    seconds = min(cpu_seconds(lambda number=number: made.append(epoch(number))) for number in (0, 1))
    return Planned(epochs=(made[0], made[1]), seconds=seconds, layout=layout, note=note)


def _module(package: str, path: str) -> ModuleType:
    """One file of an installed package, without what the package itself imports."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"No module named '{package}'")
    name = f"{package}_alone"
    spec = importlib.util.spec_from_file_location(name, f"{found.submodule_search_locations[0]}/{path}")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


PEERS = (
    Peer(name="transformers LengthGroupedSampler", samples=None, plan=length_grouped),
    Peer(name="axolotl MultipackBatchSampler", samples=None, plan=first_fit),
    Peer(name="axolotl MultipackBatchSampler, sequential", samples=None, plan=next_fit),
    Peer(name="speculators MultipackDistributedBatchSamplerV2", samples=90_200, plan=multipack_v2),
    Peer(name="trl pack_dataset bfd", samples=90_200, plan=best_fit_decreasing),
    Peer(name="trl pack_dataset bfd, one chunk", samples=90_200, plan=best_fit_decreasing_whole),
)
