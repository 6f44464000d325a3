"""Does planning stay flat as a corpus grows? `python bench/batching_scale.py [--billion] [--json]`.

In memory at 0.9, 9 and 90 million samples of the reference law: CPU time against numpy's stable argsort of the same
lengths, taken in turn, and peak memory above the inputs. Streamed at 90 million, or with `--billion` at one billion,
through `stages/plan_stream.py`. Figures are by sample; each row is a process of its own, and goes to standard error
when it is measured. A streamed row has up to 28 bytes a sample on disk below `--scratch`, and removes them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from batching_specs import reference_spec
from measure import best_in_turn, in_a_new_process, peak_bytes
from reference_lengths import BLOCK, MAX_LENGTH, reference_blocks

from dflash_pipeline.contracts.batching import BatchingSpec, Strategy
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.stages.plan_stream import SAMPLES_A_PART, plan_stream
from dflash_pipeline.stages.scatter_lengths import LengthStream

IN_MEMORY = (902_000, 9_000_000, 90_000_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One epoch of one size, by sample; `argsort` is numpy's stable one on int32 lengths, none where streamed."""

    how: str
    num_samples: int
    num_steps: int
    cpu_ns: float
    argsort_ns: float | None
    ratio: float | None
    wall_ns: float
    peak_bytes: float
    drawing_ns: float
    """CPU time to draw the lengths. It is in none of the others."""
    disk_bytes: float


def main() -> None:
    asked = _arguments()
    streamed = [1_000_000_000] if asked.billion else asked.streamed
    rows = []
    for num_samples in () if asked.billion else asked.in_memory:
        rows.append(in_a_new_process(in_memory, num_samples, asked.strategy))
        _tell(rows[-1])
    for num_samples in streamed:
        rows.append(in_a_new_process(by_stream, num_samples, asked.strategy, asked.samples_a_part, asked.scratch))
        _tell(rows[-1])
    if asked.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=get_args(Strategy), default="window")
    parser.add_argument("--in-memory", type=int, nargs="*", default=IN_MEMORY, help="numbers of samples")
    parser.add_argument("--streamed", type=int, nargs="*", default=[90_000_000], help="numbers of samples")
    parser.add_argument("--billion", action="store_true", help="one billion, streamed, and nothing else")
    parser.add_argument("--samples-a-part", type=int, default=SAMPLES_A_PART)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true", help="all rows as one document on standard output, besides")
    return parser.parse_args()


def in_memory(num_samples: int, strategy: Strategy) -> Row:
    drawing = time.process_time()
    lengths = np.empty(num_samples, dtype=np.int64)
    for at, block in zip(range(0, num_samples, BLOCK), reference_blocks(num_samples), strict=True):
        lengths[at : at + block.size] = block
    drawing = time.process_time() - drawing
    samples = SampleLengths(snapshot="reference", num_tokens=lengths, num_supervised=lengths)
    spec = reference_spec(strategy)
    _warm_up(spec)
    peak = peak_bytes(lambda: build_epoch_manifest(samples, spec, epoch=0))
    short = lengths.astype(np.int32)
    times = 5 if num_samples < 5_000_000 else 2
    began = time.perf_counter()
    manifest = build_epoch_manifest(samples, spec, epoch=0)
    wall = time.perf_counter() - began
    num_steps = manifest.num_steps
    del manifest
    best = best_in_turn(
        {
            "plan": lambda: build_epoch_manifest(samples, spec, epoch=0),
            "argsort": lambda: np.argsort(short, kind="stable"),
        },
        times=times,
    )
    return Row(
        how=f"{strategy}, in memory",
        num_samples=num_samples,
        num_steps=num_steps,
        cpu_ns=1e9 * best["plan"] / num_samples,
        argsort_ns=1e9 * best["argsort"] / num_samples,
        ratio=best["plan"] / best["argsort"],
        wall_ns=1e9 * wall / num_samples,
        peak_bytes=peak / num_samples,
        drawing_ns=1e9 * drawing / num_samples,
        disk_bytes=0.0,
    )


def by_stream(num_samples: int, strategy: Strategy, samples_a_part: int, scratch: Path) -> Row:
    spec = reference_spec(strategy)
    _warm_up_stream(spec)
    drawn = _Drawn(num_samples)
    stream = LengthStream(snapshot=f"reference-{num_samples}", num_samples=num_samples, blocks=drawn.blocks)
    out = Path(tempfile.mkdtemp(prefix="dflash-stream-", dir=scratch))
    made: dict[str, Any] = {}

    def plan() -> None:
        made["folder"], made["sealed"] = plan_stream(stream, spec, epoch=0, out=out, samples_a_part=samples_a_part)

    try:
        began, cpu = time.perf_counter(), time.process_time()
        peak = peak_bytes(plan)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        size = sum(path.stat().st_size for path in made["folder"].rglob("*") if path.is_file())
    finally:
        shutil.rmtree(out)
    return Row(
        how=f"{strategy}, {len(made['sealed'].parts)} parts",
        num_samples=made["sealed"].num_samples,
        num_steps=made["sealed"].num_steps,
        cpu_ns=1e9 * (cpu - drawn.cpu) / num_samples,
        argsort_ns=None,
        ratio=None,
        wall_ns=1e9 * (wall - drawn.wall) / num_samples,
        peak_bytes=peak / num_samples,
        drawing_ns=1e9 * drawn.cpu / num_samples,
        disk_bytes=size / num_samples,
    )


class _Drawn:
    """The reference law block by block, and how long drawing took."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self.cpu = self.wall = 0.0

    def blocks(self) -> Iterator[SampleLengths]:
        lengths = reference_blocks(self._num_samples)
        while True:
            cpu, wall = time.process_time(), time.perf_counter()
            block = next(lengths, None)
            self.cpu += time.process_time() - cpu
            self.wall += time.perf_counter() - wall
            if block is None:
                return
            yield SampleLengths(snapshot="reference", num_tokens=block, num_supervised=block)


def _warm_up(spec: BatchingSpec) -> None:
    """Loads what is compiled."""
    few = np.full(1_000, MAX_LENGTH // 8)
    build_epoch_manifest(SampleLengths(snapshot="few", num_tokens=few, num_supervised=few), spec, epoch=0)


def _warm_up_stream(spec: BatchingSpec) -> None:
    drawn = _Drawn(1_000)
    with tempfile.TemporaryDirectory() as out:
        plan_stream(LengthStream(snapshot="few", num_samples=1_000, blocks=drawn.blocks), spec, epoch=0, out=Path(out))


def _tell(row: Row) -> None:
    """A row as soon as it is measured: a large one takes long."""
    shown = {name: value for name, value in asdict(row).items() if value is not None}
    print(" · ".join(f"{name} {_cell(value)}" for name, value in shown.items()), file=sys.stderr, flush=True)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
