"""Acceptance over many prompts in several processes: decoding with one leaves cores idle."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash_pipeline.evaluation.acceptance import (
    AcceptanceReport,
    PromptAcceptance,
    combine_results,
    measure_prompts,
)
from dflash_pipeline.evaluation.decode_rows import Decoding
from dflash_pipeline.evaluation.export import load_drafter
from dflash_pipeline.evaluation.prompts import Prompt
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
    candidate: Candidate,
    prompts: Sequence[Prompt],
    decoding: Decoding,
    *,
    target_dir: Path,
    num_processes: int,
    device: str,
) -> AcceptanceReport:
    """Acceptance over all prompts. With one process nothing is spawned; how many there are changes no token."""
    shares = [list(range(first, len(prompts), num_processes)) for first in range(min(num_processes, len(prompts)))]
    work = [(candidate, [prompts[i] for i in share], decoding, share, target_dir, device) for share in shares]
    if len(work) == 1:
        measured = [_measure_share(*work[0])]
    else:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(len(work), mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            measured = list(pool.map(_measure_share, *zip(*work, strict=True)))
    by_number = {
        number: result
        for share, (results, _) in zip(shares, measured, strict=True)
        for number, result in zip(share, results, strict=True)
    }
    return combine_results(
        [by_number[number] for number in range(len(prompts))],
        temperature=decoding.choice.temperature,
        seconds=sum(seconds for _, seconds in measured),
    )


def _measure_share(
    candidate: Candidate,
    prompts: list[Prompt],
    decoding: Decoding,
    numbers: list[int],
    target_dir: Path,
    device: str,
) -> tuple[list[PromptAcceptance], float]:
    drafter = candidate.load().to(device)
    target = FrozenTarget.load(target_dir, tap_layer_ids=drafter.config.tap_layer_ids, device=device)
    return measure_prompts(target, drafter, prompts, decoding, numbers=numbers)
