"""Group `evaluation`: what the exported drafter is worth."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from dflash_pipeline.assets.metadata import count, numbers, table
from dflash_pipeline.assets.owners import EVALUATION
from dflash_pipeline.assets.plots import acceptance_by_position
from dflash_pipeline.assets.pools import NODE
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.results import ExportedDrafter

if TYPE_CHECKING:
    from dflash_pipeline.evaluation.acceptance import GroupAcceptance
    from dflash_pipeline.stages.acceptance import AcceptanceComparison


@dg.asset(group_name="evaluation", kinds={"pytorch"}, owners=EVALUATION, code_version="1", pool=NODE)
def acceptance_report(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    conversations: Ingestion,
    exported_drafter: ExportedDrafter,
) -> dg.MaterializeResult:
    """Acceptance length by real draft-and-verify decoding on held-out prompts, before and after training.

    With the exported files. Greedy output is compared with the target's own, token for token; at a temperature drafts
    are verified by rejection sampling. Rounds that the end of an answer cut are counted apart.
    """
    from dflash_pipeline.stages.acceptance import make_report
    from dflash_pipeline.stages.acceptance_tracking import track_report
    from dflash_pipeline.stages.carry_report import carry_report
    from dflash_pipeline.stages.data_versions import report_version

    made = make_report(workbench.recipe, workbench.storage, conversations, exported_drafter)
    carry_report(workbench.recipe, workbench.storage, conversations, exported_drafter, made.record)
    tracked = track_report(workbench.recipe, workbench.storage, made.record)
    untrained, trained = made.record.untrained, made.record.trained
    context.log.info(
        f"acceptance length: {untrained.mean:.2f} untrained, {trained.mean:.2f} trained, "
        f"on {trained.num_prompts} prompts"
        f"{' (unchanged, reused)' if made.reused else ''}"
    )
    return dg.MaterializeResult(
        value=made.record,
        data_version=dg.DataVersion(report_version(made.record)),
        metadata={
            **numbers(
                {
                    "trained_tokens_per_round": trained.mean,
                    "untrained_tokens_per_round": untrained.mean,
                    "trained_low_tokens_per_round": trained.interval[0],
                    "trained_high_tokens_per_round": trained.interval[1],
                    "pooled_tokens_per_round": trained.pooled,
                    "temperature": trained.temperature,
                }
            ),
            "prompts": count(trained.num_prompts),
            "whole_rounds": count(trained.num_rounds),
            "cut_rounds": count(trained.cut.num_rounds),
            "cut_tokens": count(trained.cut.num_tokens),
            "lossless": _lossless(trained.lossless, untrained.lossless),
            "per_position": table(
                ("drafted position", "accepted share"),
                [(position, round(value, 4)) for position, value in enumerate(trained.per_position, start=1)],
            ),
            "rounds_by_length": table(
                ("acceptance length", "untrained", "trained"),
                [
                    (n, *both)
                    for n, both in enumerate(zip(untrained.histogram, trained.histogram, strict=True), start=1)
                ],
            ),
            "by_source": groups("source", trained.by_source),
            "by_length": groups("prompt tokens", trained.by_length),
            "acceptance": acceptance_by_position(untrained, trained),
            "on_the_mlflow_page": tracked,
            "reused": made.reused,
            **_beside(made.record),
        },
    )


def _lossless(*drafters: bool | None) -> str:
    """A word, as not all that is measured can be compared: at a temperature two greedy texts say nothing."""
    return "not compared" if None in drafters else "yes" if all(drafters) else "no"


def groups(what: str, rows: Sequence["GroupAcceptance"]) -> dg.MetadataValue:
    """One row a source, or a range of prompt lengths."""
    return table(
        (what, "prompts", "rounds", "mean", "95 % from", "to", "pooled"),
        [
            (
                r.name,
                r.num_prompts,
                r.num_rounds,
                round(r.mean, 4),
                *(round(e, 4) for e in r.interval),
                round(r.pooled, 4),
            )
            for r in rows
        ],
    )


def _beside(record: "AcceptanceComparison") -> dict[str, dg.MetadataValue]:
    """What is known only where the run's event log is there, or the recipe gives a cost ratio."""
    estimate, speedup = record.estimate, record.expected_speedup
    found = {
        "expected_in_training_tokens_per_round": None if estimate is None else estimate.mean,
        "cost_ratio": record.cost_ratio,
        "expected_speedup_ratio": speedup,
    }
    return numbers(found)
