"""The answer of `dflash run --dry-run`, for a person to read."""

from __future__ import annotations

from typing import Any

_MIB, _GIB = 2**20, 2**30


def show_dry_run(found: dict[str, Any]) -> None:
    """Steps, memory, storage, hours, and what stands in the way."""
    lengths = found["lengths"]
    print(f"A dry run: nothing was written. Lengths: {lengths['says']}.")
    share = lengths["num_supervised_tokens"] / lengths["num_tokens"]
    print(f"samples   {lengths['num_samples']:,} to train on, {lengths['num_tokens']:,} tokens, {share:.0%} supervised")
    print(f"buckets   {found['boundaries']}")
    about = "about " if lengths["estimated"] else ""
    for epoch in found["epochs"]:
        print(
            f"epoch {epoch['epoch']:<3} {about}{epoch['num_steps']:,} steps, {_micro_batches(epoch)}, "
            f"{epoch['real_tokens']:,} tokens, padding efficiency {epoch['padding_efficiency']:.3f}"
        )
    print(f"in all    {about}{found['total_steps']:,} steps, {_micro_batches(found)}")
    if found["stops_after"] is not None:
        print(
            f"stops     after step {found['stops_after']:,}, by training.max_steps; what follows is of the whole plan"
        )
    print(f"start     {found['warm_start']}")
    _show_memory(found["memory"])
    storage = found["storage"]
    print(f"storage   {_size(storage['bytes'])}, with {_size(storage['free_bytes'])} free")
    _show_items(storage["items"])
    hours = found["hours"]
    told = "unknown" if hours["low"] is None else _range(hours["low"], hours["high"])
    print(f"training  {told}: {hours['says']}")
    _show_faults(found["faults"])


def _show_memory(memory: dict[str, Any]) -> None:
    batch = memory["largest_micro_batch"]
    print(
        f"memory    {_size(memory['bytes_per_rank'])} a {'GPU' if memory['device'] == 'cuda' else 'rank'} at the "
        f"largest micro-batch (epoch {batch['epoch']} step {batch['step']}: {batch['num_samples']:,} samples padded to "
        f"{batch['padded_length']:,}, {batch['num_blocks']:,} blocks), in {memory['moment']}"
    )
    _show_items(memory["items"])


def _show_items(items: list[dict[str, Any]]) -> None:
    for item in items:
        print(f"  {item['what']:<18}{_size(item['bytes']):>12}   {item['how']}")


def _show_faults(faults: list[dict[str, str]]) -> None:
    print(
        "preflight no fault found, devices aside" if not faults else f"preflight {len(faults)} faults, devices aside:"
    )
    for fault in faults:
        print(f"  {fault['what']} — {fault['where']} — {fault['fix']}")


def _micro_batches(counted: dict[str, Any]) -> str:
    return f"{counted['num_micro_batches']:,} micro-batches"


def _range(low: float, high: float) -> str:
    return f"{low:,.1f} hours" if low == high else f"{low:,.1f} to {high:,.1f} hours"


def _size(size: int) -> str:
    return f"{size / _GIB:,.2f} GiB" if size >= _GIB else f"{size / _MIB:,.2f} MiB"
