"""Acceptance over many prompts in several processes: decoding one prompt at a time leaves cores idle otherwise."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dflash_pipeline.evaluation.acceptance import AcceptanceReport, PromptResult, combine_results, measure_prompt
from dflash_pipeline.evaluation.export import load_drafter
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.target import FrozenTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A drafter to measure, described so that another process can make it: an export, or fresh weights from a seed."""

    export_dir: Path | None = None
    config: DrafterConfig | None = None
    seed: int = 0

    def load(self) -> Drafter:
        if self.export_dir is not None:
            return load_drafter(self.export_dir).float()
        assert self.config is not None, "a candidate is an export or a config"
        return Drafter.initialised(self.config, self.seed).eval()


def measure_in_processes(
    candidates: Sequence[Candidate],
    prompts: Sequence[NDArray[np.int64]],
    *,
    target_dir: Path,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    num_processes: int,
    device: str,
) -> list[AcceptanceReport]:
    """One report a candidate, over all prompts. With one process nothing is spawned."""
    shares = [list(range(first, len(prompts), num_processes)) for first in range(min(num_processes, len(prompts)))]
    work = [
        (list(candidates), [prompts[i] for i in share], target_dir, max_new_tokens, stop_ids, device)
        for share in shares
    ]
    if len(work) == 1:
        measured = [_measure_share(*work[0])]
    else:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(len(work), mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            measured = list(pool.map(_measure_share, *zip(*work, strict=True)))
    return [combine_results([r for share in measured for r in share[i]]) for i in range(len(candidates))]


def _measure_share(
    candidates: list[Candidate],
    prompts: list[NDArray[np.int64]],
    target_dir: Path,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    device: str,
) -> list[list[PromptResult]]:
    results = []
    for candidate in candidates:
        drafter = candidate.load().to(device)
        target = FrozenTarget.load(target_dir, tap_layer_ids=drafter.config.tap_layer_ids, device=device)
        results.append(
            [measure_prompt(target, drafter, p, max_new_tokens=max_new_tokens, stop_ids=stop_ids) for p in prompts]
        )
    return results
