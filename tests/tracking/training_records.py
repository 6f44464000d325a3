"""Records as a training loop would emit them."""

from __future__ import annotations

import math

from dflash_pipeline.contracts.events import EpochRecord, SpikeRecord, StepRecord


def step(global_step: int, *, attempt: int = 1, loss: float = math.nan, spike: bool = False) -> StepRecord:
    return StepRecord(
        global_step=global_step,
        epoch=0,
        step=global_step - 1,
        attempt=attempt,
        loss=3.0 / global_step if math.isnan(loss) else loss,
        expected_acceptance=1.5,
        gradient_norm=0.7,
        learning_rate=1e-3,
        real_tokens=900,
        padded_tokens=1000,
        supervised_tokens=400,
        num_anchors=30,
        bucket=0,
        num_samples=12,
        seconds=0.5,
        data_wait_seconds=0.1,
        target_seconds=0.05,
        drafter_seconds=0.1,
        backward_seconds=0.15,
        communication_seconds=0.05,
        optimizer_seconds=0.02,
        rank_busy_seconds=(0.3, 0.34),
        rank_real_tokens=(440, 460),
        memory_bytes=2**30,
        peak_share=math.nan,
        spike=spike,
        epochs_done=0,
        epoch_fraction=0.1,
        run_fraction=0.05,
        run_cost_fraction=0.04,
        seconds_left=60.0,
        seconds_left_low=50.0,
        seconds_left_high=80.0,
    )


def epoch(global_step: int) -> EpochRecord:
    return EpochRecord(
        global_step=global_step, epoch=0, num_steps=global_step, padding_efficiency=0.9, mean_loss=2.0, seconds=5.0
    )


def spike(global_step: int, *, num_samples: int = 2) -> SpikeRecord:
    return SpikeRecord(
        global_step=global_step,
        epoch=0,
        step=global_step - 1,
        bucket=1,
        loss=9.0,
        expected_loss=2.0,
        rule="point",
        severity="alert",
        sample_ids=tuple(range(num_samples)),
    )
