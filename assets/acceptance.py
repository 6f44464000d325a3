"""Group `evaluation`: what the exported drafter is worth."""

import dagster as dg

from dflash_pipeline.assets.metadata import count, number, table
from dflash_pipeline.assets.pools import NODE
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.results import ExportedDrafter


@dg.asset(group_name="evaluation", kinds={"pytorch"}, pool=NODE)
def acceptance_report(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    conversations: Ingestion,
    exported_drafter: ExportedDrafter,
) -> dg.MaterializeResult:
    """Acceptance length by real draft-and-verify decoding on held-out prompts, before and after training.

    Decoding is greedy with the exported files; every output is compared with the target's own, token for token.
    """
    from dflash_pipeline.stages.acceptance import make_report

    made = make_report(workbench.recipe, workbench.storage, conversations, exported_drafter)
    untrained, trained = made.record.untrained, made.record.trained
    context.log.info(
        f"acceptance length: {untrained.mean:.2f} untrained, {trained.mean:.2f} trained, "
        f"on {trained.num_prompts} prompts"
        f"{' (unchanged, reused)' if made.reused else ''}"
    )
    return dg.MaterializeResult(
        value=made.record,
        metadata={
            "acceptance_length_trained": number(trained.mean),
            "acceptance_length_untrained": number(untrained.mean),
            "interval_low": number(trained.interval[0]),
            "interval_high": number(trained.interval[1]),
            "prompts": count(trained.num_prompts),
            "lossless": trained.lossless and untrained.lossless,
            "per_position": table(
                ("drafted position", "accepted share"),
                [(position, round(value, 4)) for position, value in enumerate(trained.per_position, start=1)],
            ),
            "reused": made.reused,
        },
    )
