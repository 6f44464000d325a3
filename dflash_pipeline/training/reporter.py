"""Turns what a step did into records for the tracker; judges spikes and keeps the epoch's sums on the way."""

from __future__ import annotations

import math

from dflash_pipeline.contracts.events import EpochRecord, SpikeRecord, StepRecord
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.progress import Progress
from dflash_pipeline.training.loader import PreparedStep
from dflash_pipeline.training.meter import EpochMeter
from dflash_pipeline.training.spikes import SpikeState, Verdict, judge
from dflash_pipeline.training.step import StepResult
from dflash_pipeline.training.tracker import Tracker


class Reporter:
    """Tells `tracker`, which an attempt may set once it is known where the attempt begins."""

    def __init__(self, plan: RunPlan, *, attempt: int, spikes: SpikeState, meter: EpochMeter, tracker: Tracker) -> None:
        self.tracker = tracker
        self.spikes = spikes
        self.meter = meter
        self._plan = plan
        self._attempt = attempt

    def open_epoch(self, epoch: int) -> None:
        """Begin an epoch's sums, or go on with those of an earlier attempt."""
        if self.meter.epoch != epoch:
            self.meter = EpochMeter(epoch=epoch)

    def step(
        self,
        manifest: EpochManifest,
        prepared: PreparedStep,
        result: StepResult,
        progress: Progress,
        *,
        seconds: float,
        learning_rate: float,
    ) -> None:
        step = prepared.step
        real = ~manifest.filler[step]
        bucket = self._bucket(float(manifest.padded_length[step][real].mean()))
        verdict, self.spikes = judge(self.spikes, loss=result.loss, bucket=bucket)
        if result.applied:
            self.meter = self.meter.with_step(loss=result.loss, seconds=seconds)
        record = StepRecord(
            global_step=progress.run_steps_done,
            epoch=manifest.epoch,
            step=step,
            attempt=self._attempt,
            loss=result.loss,
            expected_acceptance=result.expected_acceptance,
            gradient_norm=result.gradient_norm,
            learning_rate=learning_rate,
            real_tokens=int(manifest.num_tokens[step][real].sum()),
            padded_tokens=int(manifest.padded_tokens[step][real].sum()),
            supervised_tokens=int(manifest.supervised_tokens[step][real].sum()),
            num_anchors=result.num_anchors,
            bucket=bucket,
            num_samples=sum(b.sample_ids.size for b in manifest.step_batches(step) if not b.filler),
            seconds=seconds,
            data_wait_seconds=prepared.wait_seconds,
            target_seconds=0.0,
            drafter_seconds=0.0,
            backward_seconds=0.0,
            communication_seconds=0.0,
            optimizer_seconds=0.0,
            rank_busy_seconds=(),
            rank_real_tokens=(),
            memory_bytes=0,
            peak_share=math.nan,
            spike=verdict.spike,
            epochs_done=manifest.epoch + (progress.epoch_steps_done == manifest.num_steps),
            epoch_fraction=progress.epoch_fraction,
            run_fraction=progress.run_fraction,
            run_cost_fraction=progress.run_cost_fraction,
            seconds_left=math.nan,
            seconds_left_low=math.nan,
            seconds_left_high=math.nan,
        )
        self.tracker.tell(record)
        if verdict.spike or verdict.slow_rise:
            self.tracker.tell(_spike(record, verdict, manifest))

    def end_epoch(self, manifest: EpochManifest, progress: Progress) -> None:
        self.tracker.tell(
            EpochRecord(
                global_step=progress.run_steps_done,
                epoch=manifest.epoch,
                num_steps=manifest.num_steps,
                padding_efficiency=self._plan.epochs[manifest.epoch].padding_efficiency,
                mean_loss=self.meter.mean_loss,
                seconds=self.meter.seconds,
            )
        )

    def _bucket(self, padded_length: float) -> int:
        """Index of the first boundary that holds this length."""
        boundaries = self._plan.spec.boundaries
        return next((i for i, b in enumerate(boundaries) if padded_length <= b), len(boundaries) - 1)


def _spike(record: StepRecord, verdict: Verdict, manifest: EpochManifest) -> SpikeRecord:
    batches = manifest.step_batches(record.step)
    return SpikeRecord(
        global_step=record.global_step,
        epoch=record.epoch,
        step=record.step,
        bucket=record.bucket,
        loss=record.loss,
        expected_loss=verdict.expected_loss,
        rule="point" if verdict.spike else "slow rise",
        severity=verdict.severity or "warn",
        sample_ids=tuple(int(i) for b in batches if not b.filler for i in b.sample_ids),
    )
