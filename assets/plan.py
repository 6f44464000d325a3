"""Group `batching`: from lengths to a sealed plan."""

from typing import Any

import dagster as dg

from dflash_pipeline.assets.metadata import count, numbers, share, table
from dflash_pipeline.assets.owners import BATCHING
from dflash_pipeline.assets.pools import WAREHOUSE
from dflash_pipeline.assets.provenance import provenance_tags
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.corpus import CorpusSnapshot, LengthStatistics
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import BucketBoundaries
from dflash_pipeline.recipe import MAX_EPOCHS

GROUP = "batching"
MANIFEST_CODE = "1"
"""Code version of `epoch_manifest`, for the epochs that it logs itself too."""
WHOLE_CHAIN = "whole_chain"
"""The job of all assets."""

UP_TO_PLAN = (
    "conversations",
    "target_responses",
    "token_sequences",
    "length_statistics",
    "bucket_boundaries",
    "batching_forecast",
    "epoch_manifest",
    "run_plan",
)

EPOCHS = dg.StaticPartitionsDefinition([f"{epoch:03d}" for epoch in range(MAX_EPOCHS)])
"""Always the same keys, so that no machine remembers another set; a run materialises those of its recipe."""


def takes_in(run: dg.DagsterRun, *names: str) -> bool:
    """Whether a run of the whole chain's job makes these assets. One whose form was opened names all of its assets."""
    selected = {key.to_user_string() for key in run.asset_selection or ()}
    return run.job_name == WHOLE_CHAIN and (not selected or selected.issuperset(names))


def epoch_range_tags(num_epochs: int) -> dict[str, str]:
    """Run tags that materialise epochs 0 … num_epochs - 1 together with everything unpartitioned."""
    return {
        "dagster/asset_partition_range_start": "000",
        "dagster/asset_partition_range_end": f"{num_epochs - 1:03d}",
    }


@dg.asset(group_name=GROUP, kinds={"duckdb"}, owners=BATCHING, code_version="1", pool=WAREHOUSE)
def length_statistics(
    context: dg.AssetExecutionContext, workbench: dg.ResourceParam[Workbench], token_sequences: CorpusSnapshot
) -> dg.MaterializeResult[LengthStatistics]:
    """The exact histogram of training lengths, counted by SQL."""
    from dflash_pipeline.assets.plots import length_histogram
    from dflash_pipeline.stages.batching import make_statistics

    statistics = make_statistics(workbench.storage, token_sequences)
    context.log.info(
        f"lengths: median {statistics.quantile(0.5)}, 95 % {statistics.quantile(0.95)}, longest {statistics.max_length}"
    )
    return dg.MaterializeResult(
        value=statistics,
        data_version=dg.DataVersion(statistics.snapshot),
        metadata={
            "samples": count(statistics.num_samples),
            "tokens": count(statistics.num_tokens),
            **numbers({"mean_tokens": statistics.num_tokens / statistics.num_samples}),
            "median_tokens": count(statistics.quantile(0.5)),
            "p95_tokens": count(statistics.quantile(0.95)),
            "longest_tokens": count(statistics.max_length),
            "supervised_share": share(statistics.supervised_fraction),
            "histogram": length_histogram(statistics, ()),
        },
    )


@dg.asset(group_name=GROUP, kinds={"numpy"}, owners=BATCHING, code_version="1", pool=WAREHOUSE)
def bucket_boundaries(
    context: dg.AssetExecutionContext, workbench: dg.ResourceParam[Workbench], length_statistics: LengthStatistics
) -> dg.MaterializeResult[BucketBoundaries]:
    """Bucket boundaries that waste the least padding: the exact optimum over unique lengths."""
    from dflash_pipeline.assets.plots import efficiency_against_buckets, length_histogram
    from dflash_pipeline.stages.batching import make_boundaries
    from dflash_pipeline.stages.bucket_curve import efficiency_by_count

    record = make_boundaries(workbench.recipe, workbench.storage, length_statistics)
    chosen = len(record.boundaries)
    context.log.info(f"boundaries: {[0, *record.boundaries]}")
    return dg.MaterializeResult(
        value=record,
        data_version=dg.DataVersion(f"{record.snapshot}:{record.boundaries}"),
        metadata={
            "boundaries": str([0, *record.boundaries]),
            "buckets": count(chosen),
            "padded_to_boundary_efficiency": share(record.padding_efficiency),
            "efficiency_against_buckets": efficiency_against_buckets(
                efficiency_by_count(workbench.recipe, length_statistics, chosen=chosen), chosen=chosen
            ),
            "histogram": length_histogram(length_statistics, record.boundaries),
        },
    )


@dg.asset(
    group_name=GROUP,
    kinds={"parquet"},
    owners=BATCHING,
    code_version=MANIFEST_CODE,
    partitions_def=EPOCHS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool=WAREHOUSE,
)
def epoch_manifest(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    token_sequences: CorpusSnapshot,
    bucket_boundaries: BucketBoundaries,
) -> dg.MaterializeResult:
    """Every micro-batch of every step of an epoch, decided before the epoch starts; one Parquet file an epoch.

    Each sample exactly once or listed as dropped; every step full; no budget exceeded.
    """
    from dflash_pipeline.assets.plots import epoch_over_steps
    from dflash_pipeline.stages.batching import PlannedEpoch, batching_spec, make_epochs
    from dflash_pipeline.stages.data_versions import plan_version
    from dflash_pipeline.store.plans import plan_folder

    batching = workbench.recipe.batching
    num_ranks = batching.slots_per_step // batching.micro_batches_per_rank
    spec = batching_spec(workbench.recipe, bucket_boundaries)
    version = plan_version(token_sequences, spec)
    folder = plan_folder(workbench.storage.plans, snapshot=token_sequences.fingerprint, spec=spec)
    tags = provenance_tags(
        context.instance,
        data_version=version,
        code_version=MANIFEST_CODE,
        inputs=[dg.AssetKey("token_sequences"), dg.AssetKey("bucket_boundaries")],
    )

    def tell(planned: PlannedEpoch, manifest: EpochManifest) -> None:
        summary = planned.summary
        context.log.info(
            f"epoch {summary.epoch}: {summary.num_steps} steps, padding efficiency {summary.padding_efficiency:.3f}"
            f"{' (unchanged, reused)' if planned.reused else ''}"
        )
        key = f"{summary.epoch:03d}"
        metadata: dict[str, Any] = {
            "steps": count(summary.num_steps),
            "micro_batches": count(summary.num_micro_batches),
            "fillers": count(summary.num_fillers),
            "dropped_samples": count(summary.num_dropped),
            "real_tokens": count(summary.real_tokens),
            "padded_tokens": count(summary.padded_tokens),
            "padding_efficiency": share(summary.padding_efficiency),
            "over_steps": epoch_over_steps(manifest, num_ranks=num_ranks),
            "digest": summary.digest,
            "folder": dg.MetadataValue.path(str(folder)),
            "reused": planned.reused,
        }
        if key in context.partition_keys:
            context.add_asset_metadata(partition_key=key, metadata=metadata)
        else:  # Chosen in the form beyond the partitions that the run was started with.
            made = dg.AssetMaterialization(context.asset_key, partition=key, metadata=metadata, tags=tags)
            context.log_event(made)

    epochs = sorted({int(key) for key in context.partition_keys} | _whole_plan(context, workbench))
    make_epochs(workbench.recipe, workbench.storage, token_sequences, bucket_boundaries, epochs, tell=tell)
    return dg.MaterializeResult(data_version=dg.DataVersion(version))


def _whole_plan(context: dg.AssetExecutionContext, workbench: Workbench) -> set[int]:
    """In a run of the whole chain every epoch that the plan will seal, however many partitions it was started with."""
    return set(range(workbench.recipe.batching.epochs)) if takes_in(context.run, "run_plan") else set()


@dg.asset(group_name=GROUP, kinds={"duckdb"}, owners=BATCHING, code_version="1", deps=[epoch_manifest], pool=WAREHOUSE)
def run_plan(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    token_sequences: CorpusSnapshot,
    bucket_boundaries: BucketBoundaries,
) -> dg.MaterializeResult[RunPlan]:
    """The totals over all epochs, sealed before step 0: learning-rate horizon and length of the run are facts."""
    from dflash_pipeline.stages.batching import make_plan
    from dflash_pipeline.store.plans import plan_folder

    made = make_plan(workbench.recipe, workbench.storage, token_sequences, bucket_boundaries)
    plan = made.record
    context.log.info(f"plan {plan.fingerprint}: {plan.total_steps:,} steps in {plan.num_epochs} epochs")
    return dg.MaterializeResult(
        value=plan,
        data_version=dg.DataVersion(plan.fingerprint),
        metadata={
            "plan": plan.fingerprint,
            "folder": dg.MetadataValue.path(
                str(plan_folder(workbench.storage.plans, snapshot=plan.snapshot, spec=plan.spec))
            ),
            "epochs": count(plan.num_epochs),
            "total_steps": count(plan.total_steps),
            "total_padded_tokens": count(sum(e.padded_tokens for e in plan.epochs)),
            "epoch_table": table(
                ("epoch", "steps", "micro_batches", "fillers", "dropped", "padding_efficiency"),
                [
                    (
                        e.epoch,
                        e.num_steps,
                        e.num_micro_batches,
                        e.num_fillers,
                        e.num_dropped,
                        round(e.padding_efficiency, 4),
                    )
                    for e in plan.epochs
                ],
            ),
            "reused": made.reused,
        },
    )
