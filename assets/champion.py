"""Group `evaluation`: the drafter to serve."""

import dagster as dg

from dflash_pipeline.assets.acceptance import acceptance_report
from dflash_pipeline.assets.metadata import numbers, table
from dflash_pipeline.assets.owners import EVALUATION
from dflash_pipeline.assets.pools import NODE
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.promotion import PromotionDecision
from dflash_pipeline.contracts.results import ExportedDrafter


@dg.asset(
    group_name="evaluation", kinds={"mlflow"}, owners=EVALUATION, code_version="1", pool=NODE, deps=[acceptance_report]
)
def champion(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    conversations: Ingestion,
    exported_drafter: ExportedDrafter,
) -> dg.MaterializeResult[PromotionDecision]:
    """Who is to be served. The new drafter takes the place when it beats the champion on the same prompts for certain.

    In MLflow's model registry it is a version of the model with the recipe's name; the alias `champion` is on one of
    them. Every decision stands in promotions.jsonl; `dflash promote --rollback` takes the last promotion back.
    """
    from dflash_pipeline.stages.acceptance import make_report
    from dflash_pipeline.stages.data_versions import decision_version
    from dflash_pipeline.stages.promotion import make_champion

    recipe, storage = workbench.recipe, workbench.storage
    comparison = make_report(recipe, storage, conversations, exported_drafter).record
    made = make_champion(recipe, storage, conversations, exported_drafter, comparison)
    decision = made.record
    context.log.info(
        f"champion: {decision.contender.run} {decision.action}, {decision.reason}"
        f"{' (decided before)' if made.reused else ''}"
    )
    return dg.MaterializeResult(
        value=decision,
        data_version=dg.DataVersion(decision_version(decision)),
        metadata={
            "decision": decision.action,
            "reason": decision.reason,
            "champion": "none" if decision.champion is None else decision.champion.run,
            "reused": made.reused,
            **_compared(decision),
        },
    )


def _compared(decision: PromotionDecision) -> dict[str, dg.MetadataValue]:
    """Challenger less champion, where there was one to compare with."""
    difference = decision.difference
    if difference is None:
        return {}
    rows = [
        (c.source, c.num_prompts, round(c.before, 4), round(c.after, 4), round(c.loss, 4)) for c in difference.sources
    ]
    return {
        **numbers(
            {
                "difference_tokens_per_round": difference.mean,
                "difference_low_tokens_per_round": difference.interval[0],
                "difference_high_tokens_per_round": difference.interval[1],
            }
        ),
        "by_source": table(("source", "prompts", "champion", "challenger", "lost share"), rows),
    }
