"""When a training's losses are warned of."""

import math

import pytest

from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.stages.data_versions import drafter_version
from dflash_pipeline.stages.training_checks import judge_losses


def trained(first: float = 5.0, last: float = 2.0, *, spikes: int = 0, steps: int = 1000, warm: str | None = None):
    return TrainedDrafter(
        run="r",
        run_dir="runs/r",
        plan="p",
        checkpoint="c",
        total_steps=1000,
        steps_done=steps,
        num_ranks=1,
        first_loss=first,
        last_loss=last,
        num_spikes=spikes,
        useful_tokens_per_second=1.0,
        padded_tokens_per_second=1.0,
        mlflow_run_id=None,
        warm_start=warm,
    )


@pytest.mark.parametrize(
    ("run", "holds", "seen"),
    [
        (trained(), True, "loss 5 to 2; 0 of 1,000 steps are spikes"),
        (trained(last=math.nan), False, "the last loss is nan"),
        (trained(last=math.inf), False, "the last loss is inf"),
        (trained(last=5.0), False, "nothing was learnt"),
        (trained(first=math.nan), False, "nothing was learnt"),
        (trained(2.0, 2.1, warm="before"), True, "loss 2 to 2.1"),
        (trained(last=5.0, steps=1), True, "of 1 steps"),
        (trained(spikes=10), True, "10 of 1,000"),
        (trained(spikes=11), False, "11 of 1,000 steps are spikes, above 1%"),
        (trained(spikes=2, steps=20), True, "2 of 20"),
        (trained(spikes=3, steps=20), False, "3 of 20"),
    ],
)
def test_losses_are_judged_by_their_end_and_their_spikes(run, holds, seen):
    finding = judge_losses(run)
    assert (finding.holds, seen in finding.seen) == (holds, True), finding.seen


def test_a_run_that_goes_on_is_another_drafter():
    assert drafter_version(trained(steps=10)) != drafter_version(trained(steps=20))
    assert drafter_version(trained(last=2.0)) == drafter_version(trained(last=2.0))
