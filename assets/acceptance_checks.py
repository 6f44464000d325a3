"""What is looked at once acceptance is measured: it warns, and holds nothing up."""

import dagster as dg

from dflash_pipeline.assets.acceptance import acceptance_report
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.results import ExportedDrafter

REPORT_INPUTS = {name: dg.AssetIn(name) for name in ("conversations", "exported_drafter")}


@dg.asset_check(asset=acceptance_report, additional_ins=REPORT_INPUTS)
def training_estimate_agrees(
    workbench: dg.ResourceParam[Workbench], conversations: Ingestion, exported_drafter: ExportedDrafter
) -> dg.AssetCheckResult:
    """Decoding accepts about what training expected in its last steps: half to double of the drafted tokens a round."""
    from dflash_pipeline.stages.acceptance import make_report
    from dflash_pipeline.stages.training_estimate import judge_estimate

    report = make_report(workbench.recipe, workbench.storage, conversations, exported_drafter).record
    agreement = judge_estimate(report.trained, report.estimate)
    return dg.AssetCheckResult(
        passed=agreement.holds,
        severity=dg.AssetCheckSeverity.WARN,
        description=agreement.seen,
        metadata={"seen": agreement.seen},
    )
