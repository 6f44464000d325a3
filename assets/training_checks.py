"""What is looked at once a drafter is trained: it warns, and holds nothing up. Promotion decides by acceptance."""

import dagster as dg

from dflash_pipeline.assets.drafter import trained_drafter
from dflash_pipeline.assets.metadata import share
from dflash_pipeline.contracts.results import TrainedDrafter


@dg.asset_check(asset=trained_drafter)
def losses_went_down(trained_drafter: TrainedDrafter) -> dg.AssetCheckResult:
    """The loss ends finite and below where it began, and at most one step in a hundred is a spike."""
    from dflash_pipeline.stages.training_checks import judge_losses

    finding = judge_losses(trained_drafter)
    return dg.AssetCheckResult(
        passed=finding.holds,
        severity=dg.AssetCheckSeverity.WARN,
        description=finding.seen,
        metadata={
            "seen": finding.seen,
            "spikes_share": share(trained_drafter.num_spikes / max(1, trained_drafter.steps_done)),
        },
    )
