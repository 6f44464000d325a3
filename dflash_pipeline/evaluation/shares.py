"""Acceptance over many prompts in several processes: decoding with one leaves cores idle."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from dflash_pipeline.contracts.errors import Failed
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

_Share = tuple["Candidate", list[Prompt], Decoding, list[int], Path, str]
_Measured = tuple[list[PromptAcceptance], float]


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
    measured = [_measure_share(*work[0])] if len(work) == 1 else _beside_one_another(work)
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


def _beside_one_another(work: Sequence[_Share]) -> list[_Measured]:
    """Each share in a process of its own. None outlives this call, nor this process, whichever way that ends."""
    spawn = multiprocessing.get_context("spawn")
    wanted, held = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(len(work), mp_context=spawn, initializer=_begin, initargs=(wanted,))
    try:
        return list(pool.map(_measure_share, *zip(*work, strict=True)))
    except BrokenProcessPool:
        raise Failed(
            "a process that measures acceptance ended without a word: it was killed, most often for want of memory",
            where="acceptance",
            fix="run again with fewer processes (evaluation.num_processes)",
        ) from None
    finally:
        # First: the pool waits for what its processes do at the moment, and a share takes minutes.
        held.close()
        pool.shutdown(cancel_futures=True)
        wanted.close()


def _begin(wanted: Connection) -> None:
    torch.set_num_threads(1)
    # Ctrl-C reaches the whole group; the parent answers it, and ends these.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_unwanted, args=(wanted,), daemon=True).start()


def _end_unwanted(wanted: Connection) -> None:
    """Nothing is ever sent: the pipe can be read from when its other end is closed, as it is by the parent's death."""
    wait([wanted])
    os._exit(1)


def _measure_share(
    candidate: Candidate,
    prompts: list[Prompt],
    decoding: Decoding,
    numbers: list[int],
    target_dir: Path,
    device: str,
) -> _Measured:
    drafter = candidate.load().to(device)
    target = FrozenTarget.load(target_dir, tap_layer_ids=drafter.config.tap_layer_ids, device=device)
    return measure_prompts(target, drafter, prompts, decoding, numbers=numbers)
