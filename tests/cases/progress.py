"""`pr_`: a real board, advanced as the case says, and what a reader saw on it."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import GlobalStep, Position, RunPlan
from dflash_pipeline.contracts.progress import Progress, ProgressBoard


def observe(path: Path) -> dict[str, Any]:
    case = json.loads(path.read_text(encoding="utf-8"))
    if "manifest_batches_per_epoch" in case:
        return _through_epochs(case["manifest_batches_per_epoch"], case["sample_progress_after"])
    if "resume_at" in case:
        return _after_resume(case["total_steps"], case["resume_at"], case["then_run_to"])
    if "reader" in case:
        return _from_before_the_start(case["reader"], case["builder"])
    return {"not_observed": f"no known form of a progress case: {sorted(case)}"}


def _through_epochs(num_steps: Sequence[int], asked: Sequence[Sequence[int]]) -> dict[str, Any]:
    plan, manifests = _planned(num_steps)
    board = ProgressBoard()
    at: dict[tuple[int, int], Progress] = {}
    for manifest in manifests:
        at[manifest.epoch, 0] = board.open_epoch(plan, manifest, Position(epoch=manifest.epoch, step=0))
        for step in range(manifest.num_steps):
            at[manifest.epoch, step + 1] = board.advance()
    return {
        "after": [
            {
                "epoch": epoch,
                "batches": step,
                "epoch_fraction": at[epoch, step].epoch_fraction,
                "run_fraction": at[epoch, step].run_fraction,
            }
            for epoch, step in asked
        ],
        "largest_epoch_fraction": max(p.epoch_fraction for p in at.values()),
        "at_each_epochs_end": [at[e, n].epoch_fraction for e, n in enumerate(num_steps)],
        "run_fraction_never_falls": _never_falls([p.run_fraction for p in at.values()]),
        "run_fraction_at_the_end": board.read().run_fraction,
        "state_at_the_end": board.read().state,
    }


def _after_resume(total_steps: int, resume_at: int, then_run_to: int) -> dict[str, Any]:
    plan, [manifest] = _planned([total_steps])
    board = ProgressBoard()
    readings = [board.open_epoch(plan, manifest, plan.position(GlobalStep(resume_at)))]
    readings += [board.advance() for _ in range(then_run_to - resume_at)]
    return {
        "at_once_after_resume": readings[0].run_fraction,
        "totals_seen": sorted({p.run_steps for p in readings}),
        "at_the_end": readings[-1].run_fraction,
        "never_falls": _never_falls([p.run_fraction for p in readings]),
        "state_at_the_end": readings[-1].state,
    }


def _from_before_the_start(reader: str, builder: str) -> dict[str, Any]:
    poll, ready, steps = _numbers(reader, r"every (\d+) ms"), _numbers(builder, r"after (\d+) ms"), _steps(builder)
    if poll is None or ready is None or not steps:
        return {"not_observed": "reader or builder does not say when, or how many batches"}
    plan, manifests = _planned(steps)
    board, done = ProgressBoard(), threading.Event()
    seen: list[Progress] = []
    faults: list[str] = []

    def poll_until_done() -> None:
        while not done.is_set():
            try:
                seen.append(board.read())
            except Exception as error:  # What a reader would meet is what is asked.
                faults.append(f"{type(error).__name__}: {error}")
            time.sleep(poll / 1000)

    thread = threading.Thread(target=poll_until_done)
    thread.start()
    time.sleep(ready / 1000)
    before = len(seen)
    for manifest in manifests:
        board.open_epoch(plan, manifest, Position(epoch=manifest.epoch, step=0))
        for _ in range(manifest.num_steps):
            time.sleep(poll / 1000)
            board.advance()
    time.sleep(5 * poll / 1000)
    done.set()
    thread.join()
    fractions = [p.epoch_fraction for p in seen]
    return {
        "exceptions": faults,
        "states_before_the_first_manifest": sorted({p.state for p in seen[:before]}),
        "readings": len(seen),
        "smallest": min(fractions),
        "largest": max(fractions),
        "never_falls_within_an_epoch": all(
            _never_falls([p.epoch_fraction for p in seen if p.epoch == epoch]) for epoch in range(len(steps))
        ),
        "last_state": seen[-1].state,
    }


def _steps(builder: str) -> list[int]:
    listed = re.search(r"have ([\d, and]+)", builder)
    return [int(n) for n in re.findall(r"\d+", listed[1])] if listed else []


def _numbers(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def _planned(num_steps: Sequence[int]) -> tuple[RunPlan, list[EpochManifest]]:
    """A plan whose epochs have these numbers of steps: one sample a step, the rest of the corpus dropped."""
    corpus = max(num_steps)
    manifests = [_manifest(epoch, steps, corpus) for epoch, steps in enumerate(num_steps)]
    spec = BatchingSpec(strategy="sorted", token_budget=8, slots_per_step=1, boundaries=(8,))
    return RunPlan(snapshot="case", spec=spec, epochs=tuple(m.summary() for m in manifests)), manifests


def _manifest(epoch: int, num_steps: int, corpus: int) -> EpochManifest:
    shape = (num_steps, 1)
    return EpochManifest(
        epoch=epoch,
        num_corpus_samples=corpus,
        slots_per_step=1,
        token_budget=8,
        sample_ids=np.arange(num_steps),
        offsets=np.arange(num_steps + 1),
        padded_length=np.full(shape, 8),
        num_tokens=np.full(shape, 8),
        supervised_tokens=np.full(shape, 4),
        cost=np.full(shape, 8.0),
        filler=np.zeros(shape, dtype=np.bool_),
        dropped=np.arange(num_steps, corpus),
    )


def _never_falls(values: Sequence[float]) -> bool:
    return all(later >= earlier for earlier, later in pairwise(values))
