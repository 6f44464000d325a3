"""Turns what a step did into records for the tracker; judges spikes and keeps the epoch's sums on the way."""

from __future__ import annotations

from dflash_pipeline.contracts.events import EpochRecord, SpikeRecord, StepRecord
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.progress import Progress
from dflash_pipeline.training.all_ranks import StepMeasure
from dflash_pipeline.training.loader import PreparedStep
from dflash_pipeline.training.meter import EpochMeter
from dflash_pipeline.training.spikes import SpikeState, Verdict, judge
from dflash_pipeline.training.step import StepResult
from dflash_pipeline.training.time_left import Pace
from dflash_pipeline.training.tracker import Tracker


class Reporter:
    """Tells `tracker`, which an attempt may set once it is known where the attempt begins."""

    def __init__(self, plan: RunPlan, *, attempt: int, spikes: SpikeState, meter: EpochMeter, tracker: Tracker) -> None:
        self.tracker = tracker
        self.spikes = spikes
        self.meter = meter
        self._plan = plan
        self._attempt = attempt
        self._pace = Pace()

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
        measure: StepMeasure,
        *,
        seconds: float,
        learning_rate: float,
    ) -> StepRecord:
        step = prepared.step
        real = ~manifest.filler[step]
        bucket = self._bucket(float(manifest.padded_length[step][real].mean()))
        verdict, self.spikes = judge(self.spikes, loss=result.loss, bucket=bucket)
        times, cost = measure.mean_times(), float(manifest.cost[step][real].sum())
        self._pace.add(cost=cost, seconds=seconds)
        left = self._pace.left(progress.run_cost - progress.run_cost_done)
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
            data_wait_seconds=measure.mean_data_wait,
            target_seconds=times.target,
            drafter_seconds=times.drafter,
            backward_seconds=times.backward,
            communication_seconds=times.communication,
            optimizer_seconds=times.optimizer,
            rank_busy_seconds=tuple(rank.times.busy for rank in measure.ranks),
            rank_real_tokens=tuple(rank.real_tokens for rank in measure.ranks),
            memory_bytes=measure.memory_bytes,
            peak_share=measure.peak_share(seconds),
            spike=verdict.spike,
            epochs_done=manifest.epoch + (progress.epoch_steps_done == manifest.num_steps),
            epoch_fraction=progress.epoch_fraction,
            run_fraction=progress.run_fraction,
            run_cost_fraction=progress.run_cost_fraction,
            seconds_left=left.mid,
            seconds_left_low=left.low,
            seconds_left_high=left.high,
        )
        if result.applied:
            self.meter = self.meter.with_step(record, cost=cost)
        self.tracker.tell(record)
        if verdict.spike or verdict.slow_rise:
            self.tracker.tell(_spike(record, verdict, manifest))
        return record

    def end_epoch(self, manifest: EpochManifest, progress: Progress) -> None:
        self.tracker.tell(
            EpochRecord(
                global_step=progress.run_steps_done,
                epoch=manifest.epoch,
                num_steps=manifest.num_steps,
                padding_efficiency=self._plan.epochs[manifest.epoch].padding_efficiency,
                mean_loss=self.meter.mean_loss,
                seconds=self.meter.seconds,
                buckets=self.meter.bucket_seconds(),
                rank_busy_seconds=self.meter.rank_busy_seconds,
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
