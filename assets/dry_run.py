"""The job `dry_run`: what a run would take, in seconds, from the same form as the run itself. Nothing is made."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dflash_pipeline.assets.metadata import count, numbers, share, table
from dflash_pipeline.assets.resources import Workbench

DRY_RUN = "dry_run"


@dg.op(name="what_the_run_would_take", out=dg.Out(dg.Nothing))
def what_the_run_would_take(context: dg.OpExecutionContext, workbench: dg.ResourceParam[Workbench]) -> None:
    """Steps, memory, storage, hours and faults of the whole chain with the settings of the form."""
    from dflash_pipeline.stages.dry_run import dry_run

    found = dry_run(workbench.recipe, workbench.storage, None, known={})
    for fault in found["faults"]:
        context.log.warning(f"{fault['where']}: {fault['what']}; {fault['fix']}")
    context.log.info(
        f"dry run: {'about ' if found['lengths']['estimated'] else ''}{found['total_steps']:,} steps, "
        f"{found['memory']['bytes_per_rank']:,} bytes a rank, {len(found['faults'])} faults; nothing was made"
    )
    context.add_output_metadata(shown(found))


@dg.job(
    name=DRY_RUN,
    description="Steps, memory, storage, hours and faults of a run of whole_chain with the settings of this form, as "
    "`dflash run --dry-run` tells them. Takes seconds, trains nothing, makes no asset, and waits for no training that "
    "goes on. The figures stand with the output of its one step.",
)
def dry_run_job() -> None:
    what_the_run_would_take()


def shown(found: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """The answer of a dry run for the page. Sizes are in bytes, times in hours."""
    lengths, memory, storage, hours = found["lengths"], found["memory"], found["storage"], found["hours"]
    return {
        "steps": count(found["total_steps"]),
        "micro_batches": count(found["num_micro_batches"]),
        "samples": count(lengths["num_samples"]),
        "tokens": count(lengths["num_tokens"]),
        "lengths": dg.MetadataValue.text(lengths["says"]),
        "start": dg.MetadataValue.text(found["warm_start"]),
        "stops_after": dg.MetadataValue.text(
            "the plan's end" if (s := found["stops_after"]) is None else f"step {s:,}"
        ),
        "boundaries": dg.MetadataValue.text(str(found["boundaries"])),
        "ranks": count(memory["num_ranks"]),
        "rank_memory_bytes": count(memory["bytes_per_rank"]),
        "memory": _items(memory["items"]),
        "storage_bytes": count(storage["bytes"]),
        "free_bytes": count(storage["free_bytes"]),
        "storage": _items(storage["items"]),
        "hours": dg.MetadataValue.text(hours["says"]),
        **numbers({"low_hours": hours["low"], "high_hours": hours["high"]}),
        "epochs": _epochs(found["epochs"]),
        "padding_efficiency": share(_efficiency(found["epochs"])),
        "faults": count(len(found["faults"])),
        "fault_list": table(
            ("where", "what", "fix"), [(fault["where"], fault["what"], fault["fix"]) for fault in found["faults"]]
        ),
    }


def _items(items: Sequence[Mapping[str, Any]]) -> dg.MetadataValue:
    return table(("what", "bytes", "how"), [(item["what"], item["bytes"], item["how"]) for item in items])


def _epochs(epochs: Sequence[Mapping[str, Any]]) -> dg.MetadataValue:
    columns = ("epoch", "num_steps", "num_micro_batches", "real_tokens", "padded_tokens", "padding_efficiency")
    return table(columns, [tuple(epoch[name] for name in columns) for epoch in epochs])


def _efficiency(epochs: Sequence[Mapping[str, Any]]) -> float:
    """Real tokens over padded ones, of all epochs."""
    return float(sum(e["real_tokens"] for e in epochs) / sum(e["padded_tokens"] for e in epochs))
