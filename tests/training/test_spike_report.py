"""What the reporter tells of a step that the detector names: which rule, how severe, and which samples."""

import math
from pathlib import Path

import pytest

from dflash_pipeline.contracts.plan import Position
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.store.plans import load_planned_epoch
from dflash_pipeline.training.all_ranks import RankMeasure, StepMeasure
from dflash_pipeline.training.loader import PreparedStep
from dflash_pipeline.training.meter import EpochMeter
from dflash_pipeline.training.reporter import Reporter
from dflash_pipeline.training.spikes import no_history
from dflash_pipeline.training.step import StepResult, Wishes
from dflash_pipeline.training.step_clock import StepTimes
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import Recorder, plan_of, write_toy

STEP = 2
USUAL = [1.0] * 40
RANK = RankMeasure(data_wait=0.1, times=StepTimes(), real_tokens=9, memory_bytes=2**20, operations=math.nan)
MEASURE = StepMeasure(ranks=(RANK,), peak_operations=math.nan)


def told(folder, losses):
    """Records of steps and spikes of a series of losses, all in one step of the plan."""
    config = write_toy(folder, lengths=LENGTHS, spec=SPEC, epochs=1)
    plan, recorder = plan_of(config), Recorder()
    manifest = load_planned_epoch(Path(config.plan_dir), plan, 0)
    buckets = len(SPEC.boundaries)
    meter = EpochMeter(epoch=0)
    reporter = Reporter(plan, attempt=1, spikes=no_history(buckets), meter=meter, tracker=recorder)
    board = ProgressBoard()
    board.open_epoch(plan, manifest, Position(epoch=0, step=0))
    progress = board.advance()
    for loss in losses:
        result = StepResult(
            loss=loss, expected_acceptance=1.0, gradient_norm=1.0, num_anchors=1, applied=True, wishes=Wishes()
        )
        prepared = PreparedStep(step=STEP, batches=(), wait_seconds=0.0)
        reporter.step(manifest, prepared, result, progress, MEASURE, seconds=1.0, learning_rate=0.1)
    batches = [manifest.micro_batch(STEP, slot) for slot in range(SPEC.slots_per_step)]
    samples = {int(i) for batch in batches for i in batch.sample_ids}
    return recorder, samples


@pytest.mark.parametrize(("loss", "severity"), [(1.3, "warn"), (5.0, "alert"), (float("nan"), "alert")])
def test_a_spike(tmp_path, loss, severity):
    recorder, samples = told(tmp_path, [*USUAL, loss])
    assert [record.spike for record in recorder.steps] == [False] * 40 + [True]
    [spike] = recorder.spikes
    assert (spike.rule, spike.severity) == ("point", severity)
    assert spike.expected_loss == pytest.approx(1.0)
    assert set(spike.sample_ids) == samples


def test_a_slow_rise_is_told_and_its_steps_are_no_spikes(tmp_path):
    recorder, samples = told(tmp_path, [*USUAL, 1.1, 1.1, 1.1, 1.1, 1.0])
    assert not any(record.spike for record in recorder.steps)
    [rise] = recorder.spikes
    assert (rise.rule, rise.severity, rise.loss) == ("slow rise", "warn", 1.1)
    assert set(rise.sample_ids) == samples
