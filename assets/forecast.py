"""Group `batching`: what each strategy would make of the snapshot, before a GPU-hour is spent."""

import dagster as dg

from dflash_pipeline.assets.metadata import count, numbers, table
from dflash_pipeline.assets.owners import BATCHING
from dflash_pipeline.assets.plan import GROUP
from dflash_pipeline.assets.pools import WAREHOUSE
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.results import BucketBoundaries


@dg.asset(group_name=GROUP, kinds={"numpy"}, owners=BATCHING, code_version="1", pool=WAREHOUSE)
def batching_forecast(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    token_sequences: CorpusSnapshot,
    bucket_boundaries: BucketBoundaries,
) -> dg.MaterializeResult:
    """All batching strategies side by side on this snapshot: two epochs of each planned and measured, none estimated.

    Throughput is relative to sorted batches, by the recipe's cost model, or by one fitted to the step times of the
    newest run on this target. The picture sets efficiency against diversity; the recipe's strategy is marked.
    """
    from dflash_pipeline.assets.plots import efficiency_against_diversity
    from dflash_pipeline.stages.data_versions import forecast_version
    from dflash_pipeline.stages.forecast import make_forecast

    rows, time = make_forecast(workbench.recipe, workbench.storage, token_sequences, bucket_boundaries)
    chosen = next(row for row in rows if row.chosen)
    context.log.info(
        f"forecast: {chosen.name} at {chosen.relative_throughput:.3f} of the speed of sorted, "
        f"{chosen.pair_repetition:.2g} of its pairs meet again"
    )
    fitted = {} if time is None else {"fitted_to_steps": count(time.num_steps)}
    return dg.MaterializeResult(
        data_version=dg.DataVersion(forecast_version(token_sequences, rows)),
        metadata={
            "chosen": chosen.name,
            **numbers(
                {
                    "throughput_to_sorted_ratio": chosen.relative_throughput,
                    "padding_efficiency": chosen.padding_efficiency,
                    "pair_repetition_share": chosen.pair_repetition,
                    "fit_error_ratio": None if time is None else time.relative_error,
                    "fitted_quadratic_length_tokens": None if time is None else time.cost.quadratic_length,
                }
            ),
            "left_out_samples": count(chosen.num_dropped),
            "strategies": table(
                (
                    "strategy",
                    "steps",
                    "padding efficiency",
                    "overall efficiency",
                    "rank balance",
                    "length distance",
                    "pair repetition",
                    "shapes",
                    "speed against sorted",
                    "hours an epoch",
                ),
                [
                    (
                        row.name,
                        row.num_steps,
                        round(row.padding_efficiency, 4),
                        round(row.overall_efficiency, 4),
                        round(row.rank_balance, 4),
                        round(row.length_distance, 1),
                        float(f"{row.pair_repetition:.3g}"),
                        row.num_shapes,
                        round(row.relative_throughput, 3),
                        "unknown" if row.hours is None else f"{row.hours:.3g}",
                    )
                    for row in rows
                ],
            ),
            "picture": efficiency_against_diversity(rows),
            **fitted,
        },
    )
