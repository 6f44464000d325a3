"""What must hold before a GPU-hour is spent. All of these block what comes after when they fail in earnest."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg

from dflash_pipeline.assets.acceptance import acceptance_report
from dflash_pipeline.assets.corpus import conversations
from dflash_pipeline.assets.export import exported_drafter
from dflash_pipeline.assets.metadata import share
from dflash_pipeline.assets.plan import run_plan
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import ExportedDrafter


@dg.asset_check(asset=conversations, blocking=True)
def few_rows_rejected(workbench: dg.ResourceParam[Workbench], conversations: Ingestion) -> dg.AssetCheckResult:
    """The share of rejected rows is low: above `data.rejection_warn` a warning, above `data.rejection_block` the end.

    Prompts that the target will answer do not count. A file that could not be read is warned of.
    """
    from dflash_pipeline.stages.conversations import judge_rejections

    verdict = judge_rejections(workbench.recipe, conversations)
    return dg.AssetCheckResult(
        passed=not verdict.warns,
        severity=dg.AssetCheckSeverity.ERROR if verdict.blocks else dg.AssetCheckSeverity.WARN,
        description=verdict.seen,
        metadata={"rejected_share": share(verdict.share), "seen": verdict.seen},
    )


PLAN_INPUTS = {"token_sequences": dg.AssetIn("token_sequences")}


@dg.asset_check(asset=run_plan, blocking=True, additional_ins=PLAN_INPUTS)
def every_sample_once(
    workbench: dg.ResourceParam[Workbench], run_plan: RunPlan, token_sequences: CorpusSnapshot
) -> dg.AssetCheckResult:
    """In every epoch each training sample is scheduled exactly once, or listed as dropped."""
    from dflash_pipeline.stages.checks import check_every_sample_once

    return _result(check_every_sample_once, workbench, run_plan, token_sequences)


@dg.asset_check(asset=run_plan, blocking=True, additional_ins=PLAN_INPUTS)
def token_budget_respected(
    workbench: dg.ResourceParam[Workbench], run_plan: RunPlan, token_sequences: CorpusSnapshot
) -> dg.AssetCheckResult:
    """No micro-batch is padded to more tokens than the budget, measured with the snapshot's own lengths."""
    from dflash_pipeline.stages.checks import check_token_budget

    return _result(check_token_budget, workbench, run_plan, token_sequences)


@dg.asset_check(asset=run_plan, blocking=True, additional_ins=PLAN_INPUTS)
def totals_agree(
    workbench: dg.ResourceParam[Workbench], run_plan: RunPlan, token_sequences: CorpusSnapshot
) -> dg.AssetCheckResult:
    """The plan's totals are those of the manifests on disk and of the snapshot's samples."""
    from dflash_pipeline.stages.checks import check_totals

    return _result(check_totals, workbench, run_plan, token_sequences)


@dg.asset_check(asset=exported_drafter, blocking=True)
def export_drafts_losslessly(
    workbench: dg.ResourceParam[Workbench], exported_drafter: ExportedDrafter
) -> dg.AssetCheckResult:
    """The exported files are whole, their names and shapes are what the config implies, and decoding loses nothing."""
    return _verified(workbench, Path(exported_drafter.export_dir))


@dg.asset_check(
    asset=acceptance_report, blocking=True, additional_ins={"exported_drafter": dg.AssetIn("exported_drafter")}
)
def export_drafts_as_reported(
    workbench: dg.ResourceParam[Workbench], exported_drafter: ExportedDrafter
) -> dg.AssetCheckResult:
    """The last check: the exported files, with the report they carry, draft as the report says; in every form."""
    folders = [exported_drafter.export_dir, exported_drafter.speculators_dir]
    results = [_verified(workbench, Path(folder)) for folder in folders if folder is not None]
    return next((result for result in results if not result.passed), results[0])


def _verified(workbench: Workbench, folder: Path) -> dg.AssetCheckResult:
    from dflash_pipeline.evaluation.verify import verify_export

    checks = verify_export(folder, workbench.recipe.target.path, device=workbench.recipe.training.device)
    failed = [check.name for check in checks if not check.ok]
    return dg.AssetCheckResult(
        passed=not failed,
        description=f"{folder.name}: {'all holds' if not failed else ', '.join(failed) + ' failed'}",
        metadata={check.name: check.detail for check in checks},
    )


def _result(check: Callable, workbench: Workbench, plan: RunPlan, snapshot: CorpusSnapshot) -> dg.AssetCheckResult:
    finding = check(workbench.storage, snapshot, plan)
    return dg.AssetCheckResult(passed=finding.holds, description=finding.seen, metadata={"seen": finding.seen})
