"""`dflash boundaries`, `plan` and `manifest`: planning for any lengths, without a recipe, a database or Dagster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_pipeline.contracts.batching import (
    MOST_TOKENS,
    BatchingSpec,
    CostModel,
    Objective,
    OverlongPolicy,
    Padding,
    Strategy,
    TailPolicy,
)
from dflash_pipeline.contracts.corpus import LengthStatistics, SampleLengths
from dflash_pipeline.contracts.errors import ContractBroken, DflashError, Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.planning.boundaries import candidate_grid, choose_boundaries, padding_efficiency
from dflash_pipeline.planning.diversity import length_distance, overall_efficiency, pair_repetition
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.store.plans import (
    check_spec,
    load_epoch,
    load_plan,
    load_planned_epoch,
    save_epoch,
    save_spec,
    seal_plan,
)
from dflash_pipeline.store.records import load_record


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """What `dflash plan` is asked."""

    lengths: Path
    strategy: Strategy
    token_budget: int
    slots_per_step: int
    micro_batches_per_rank: int
    epochs: int
    seed: int
    num_buckets: int | Literal["auto"]
    grid: int
    quadratic_length: float | None
    padding: Padding
    tail: TailPolicy
    overlong: OverlongPolicy
    out: Path


def read_lengths(path: Path) -> SampleLengths:
    """Lengths from `.npy` (one dimension of whole numbers) or `.parquet` (column `length`, optionally `supervised`)."""
    columns = zip(_columns(path), ("length", "supervised"), strict=True)
    lengths, supervised = (_whole_numbers(column, name, path) for column, name in columns)
    if lengths.size and lengths.max() < 1:
        raise Refused(f"none of {lengths.size} samples has a token", where=str(path), fix="give lengths above 0")
    try:
        return SampleLengths(
            snapshot=fingerprint(lengths=lengths, supervised=supervised), num_tokens=lengths, num_supervised=supervised
        )
    except ContractBroken as broken:
        raise Refused(broken.what, where=str(path), fix=broken.fix) from None


def _columns(path: Path) -> tuple[Any, Any]:
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            lengths = table["length"].to_numpy()
            return lengths, table["supervised"].to_numpy() if "supervised" in table.column_names else lengths
        lengths = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise Refused("there is no such file", where=str(path), fix="give a .npy or .parquet file of lengths") from None
    except (ValueError, OSError, KeyError, EOFError, pa.ArrowException) as error:
        # What numpy says of a file that is not its own speaks of pickles, and of how to load them unsafely.
        why = "it is no .npy file of numbers" if "pickle" in str(error) else error
        raise Refused(
            f"no lengths can be read: {why}", where=str(path), fix="give .npy, or .parquet with a column `length`"
        ) from None
    return lengths, lengths


def _whole_numbers(column: Any, name: str, path: Path) -> np.ndarray:
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iu":
        seen = f"{column.dtype} with shape {column.shape}" if isinstance(column, np.ndarray) else "several arrays"
        raise Refused(
            f"no list of numbers for {name!r}: {seen}",
            where=str(path),
            fix="give whole numbers in one dimension, none missing",
        )
    odd = np.flatnonzero((column < 0) | (column > MOST_TOKENS))
    if odd.size:
        raise Refused(
            f"sample {odd[0]} has {name} {column[odd[0]]}",
            where=str(path),
            fix=f"give whole numbers from 0 to {MOST_TOKENS}",
        )
    return column.astype(np.int64)


def boundary_facts(
    path: Path, *, num_buckets: int | Literal["auto"], grid: int, objective: Objective, token_budget: int | None
) -> dict[str, Any]:
    """Boundaries, the padding efficiency that the objective expects of them, and the seconds after the histogram."""
    if token_budget is not None and objective != "batch-max":
        raise Refused(
            f"the objective {objective} takes no token budget",
            where="--token-budget",
            fix="add --objective batch-max, or leave the budget out",
        )
    statistics = length_statistics(read_lengths(path))
    if grid > statistics.max_length:
        raise Refused(
            f"a grid of {grid:,} above the longest of the lengths, {statistics.max_length:,}",
            where="--grid",
            fix="use 1, or 64 for static shapes",
        )

    def chosen(of: LengthStatistics) -> tuple[int, ...]:
        return choose_boundaries(
            of, num_buckets=num_buckets, grid=grid, cost=CostModel(), objective=objective, token_budget=token_budget
        )

    chosen(length_statistics(_longest_of(read_lengths(path))))  # Loads or makes the compiled loops.
    began = time.perf_counter()
    boundaries = chosen(statistics)
    seconds = time.perf_counter() - began
    expected = token_budget if objective == "batch-max" else None
    return {
        "boundaries": [0, *boundaries],
        "efficiency": padding_efficiency(statistics, boundaries, token_budget=expected),
        "grid": candidate_grid(statistics, grid, objective),
        "seconds": seconds,
    }


def _longest_of(samples: SampleLengths) -> SampleLengths:
    """The longest sample alone, to try the planner on: what it is refused for, all would be."""
    first = int(np.argmax(samples.num_tokens))
    return SampleLengths(
        snapshot=samples.snapshot,
        num_tokens=samples.num_tokens[first : first + 1].copy(),
        num_supervised=samples.num_supervised[first : first + 1].copy(),
    )


def plan_files(request: PlanRequest) -> dict[str, Any]:
    """Write manifests and the sealed plan to `request.out`; facts of each epoch."""
    samples = read_lengths(request.lengths)
    cost = CostModel(quadratic_length=request.quadratic_length)
    spec = _spec(request, samples, cost)
    _refuse_another_plan(request.out, samples.snapshot, spec)
    save_spec(request.out, spec)
    num_ranks = spec.slots_per_step // spec.micro_batches_per_rank
    plan_seconds = write_seconds = 0.0
    compile_seconds = _prepared(samples, spec)
    facts: list[dict[str, Any]] = []
    summaries = []
    before: EpochManifest | None = None
    for epoch in range(request.epochs):
        began = time.perf_counter()
        manifest = build_epoch_manifest(samples, spec, epoch=epoch)
        planned = time.perf_counter()
        save_epoch(request.out, manifest)
        plan_seconds += planned - began
        write_seconds += time.perf_counter() - planned
        summaries.append(manifest.summary())
        facts.append(
            epoch_facts(manifest)
            | {
                "overall_efficiency": overall_efficiency(manifest, samples, cost, num_ranks=num_ranks),
                "length_distance_w1t": length_distance(manifest, samples),
                "pair_repetition": None if before is None else pair_repetition(before, manifest),
            }
        )
        before = manifest
    plan = RunPlan(snapshot=samples.snapshot, spec=spec, epochs=tuple(summaries))
    seal_plan(request.out, plan)
    return {
        "plan": plan.fingerprint,
        "total_steps": plan.total_steps,
        "boundaries": [0, *spec.boundaries],
        "epochs": facts,
        "seconds": {"plan": plan_seconds, "write": write_seconds, "compile": compile_seconds},
    }


def _prepared(samples: SampleLengths, spec: BatchingSpec) -> float:
    """Load the compiled loops, or on a machine's first use make them; the seconds it took."""
    began = time.perf_counter()
    build_epoch_manifest(_longest_of(samples), replace(spec, overlong="refuse", tail="fill"), epoch=0)
    return time.perf_counter() - began


def epoch_facts(manifest: EpochManifest) -> dict[str, Any]:
    summary = asdict(manifest.summary())
    return {
        "epoch": summary["epoch"],
        "num_steps": summary["num_steps"],
        "num_micro_batches": summary["num_micro_batches"],
        "num_samples": summary["num_samples"],
        "dropped": manifest.dropped.tolist(),
        "fillers": summary["num_fillers"],
        "real_tokens": summary["real_tokens"],
        "padded_tokens": summary["padded_tokens"],
        "padding_efficiency": manifest.summary().padding_efficiency,
        "digest": summary["digest"],
    }


def show_plan(folder: Path) -> dict[str, Any]:
    plan = _plan(folder)
    return {
        "plan": plan.fingerprint,
        "snapshot": plan.snapshot,
        "total_steps": plan.total_steps,
        "spec": asdict(plan.spec),
        "epochs": [epoch_facts(load_epoch(folder, e)) for e in range(plan.num_epochs)],
    }


def verify_plan(folder: Path) -> dict[str, Any]:
    """Whether the spec and every epoch are whole, keep their contracts and are the ones the plan sealed."""
    plan = _plan(folder)
    checks: list[Callable[[], object]] = [
        partial(check_spec, folder, plan),
        *(partial(load_planned_epoch, folder, plan, epoch) for epoch in range(plan.num_epochs)),
    ]
    faults = []
    for check in checks:
        try:
            check()
        except DflashError as error:
            faults.append(error.as_json())
    return {"ok": not faults, "plan": plan.fingerprint, "faults": faults}


def diff_plans(folders: Sequence[Path]) -> dict[str, Any]:
    """What two plans differ in: rules, then epoch by epoch."""
    if len(folders) != 2:
        raise Refused(f"{len(folders)} folders", where="manifest diff", fix="give exactly two plan folders")
    first, second = (_plan(folder) for folder in folders)
    for folder, plan in zip(folders, (first, second), strict=True):
        for epoch in range(plan.num_epochs):
            load_planned_epoch(folder, plan, epoch)  # A damaged epoch is refused: there is nothing to compare.
    specs = asdict(first.spec), asdict(second.spec)
    longer = max(first.num_epochs, second.num_epochs)
    digests = [[p.epochs[e].digest if e < p.num_epochs else None for p in (first, second)] for e in range(longer)]
    steps = [[p.epochs[e].num_steps if e < p.num_epochs else None for p in (first, second)] for e in range(longer)]
    return {
        "same": first.fingerprint == second.fingerprint,
        "snapshot": [first.snapshot, second.snapshot],
        "spec": {key: [specs[0][key], specs[1][key]] for key in specs[0] if specs[0][key] != specs[1][key]},
        "epochs": [{"epoch": e, "same": digests[e][0] == digests[e][1], "num_steps": steps[e]} for e in range(longer)],
    }


def _plan(folder: Path) -> RunPlan:
    if not folder.is_dir():
        what = "this is a file" if folder.exists() else "there is no such folder"
        raise Refused(what, where=str(folder), fix="give the folder that `dflash plan --out` wrote")
    return load_plan(folder)


def _refuse_another_plan(folder: Path, snapshot: str, spec: BatchingSpec) -> None:
    """Epochs of other lengths or rules are not written over."""
    for path in sorted(folder.glob("plan-*.json")):
        there = load_record(path, RunPlan)
        if (there.snapshot, there.spec) != (snapshot, spec):
            raise Refused(
                f"it holds plan {there.fingerprint}, of other lengths or rules",
                where=str(folder),
                fix="give --out another folder, or remove this one",
            )


def _spec(request: PlanRequest, samples: SampleLengths, cost: CostModel) -> BatchingSpec:
    boundaries = choose_boundaries(
        length_statistics(samples),
        num_buckets=request.num_buckets,
        grid=request.grid,
        cost=cost,
        objective="boundary",
        token_budget=None,
    )
    return BatchingSpec(
        strategy=request.strategy,
        token_budget=request.token_budget,
        slots_per_step=request.slots_per_step,
        micro_batches_per_rank=request.micro_batches_per_rank,
        boundaries=boundaries,
        padding=request.padding,
        cost=cost,
        seed=request.seed,
        tail=request.tail,
        overlong=request.overlong,
    )
