"""The run: epoch after epoch of the plan, step after step of its manifest, from wherever the last checkpoint stands."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from tqdm import tqdm

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.events import EpochRecord, SpikeRecord, StepRecord
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import GlobalStep, Position, RunPlan
from dflash_pipeline.contracts.progress import Progress, ProgressBoard
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.store.plans import load_plan, load_planned_epoch
from dflash_pipeline.store.tokens import TokenStore
from dflash_pipeline.training.checkpoint import (
    CheckpointState,
    load_checkpoint,
    newest_whole_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from dflash_pipeline.training.collate import Collator
from dflash_pipeline.training.distributed import Ranks, check_world_size
from dflash_pipeline.training.loader import EpochLoader, PreparedStep
from dflash_pipeline.training.schedule import learning_rate
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.spikes import SpikeState, judge, no_history
from dflash_pipeline.training.step import StepResult, run_step
from dflash_pipeline.training.tracker import Tracker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How an attempt ended."""

    finished: bool
    """False: asked to stop, with a checkpoint at the step it stopped after."""
    first_step: int
    last_step: int


class Trainer:
    """One attempt at a run. Everything it needs exists when it is constructed; `train` runs it once."""

    def __init__(
        self,
        config: LaunchConfig,
        *,
        ranks: Ranks,
        tracker: Tracker,
        attempt: int,
        stop_asked: Callable[[], bool],
        board: ProgressBoard,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.tracker = tracker
        self.attempt = attempt
        self.stop_asked = stop_asked
        self.board = board
        self.plan_dir = Path(config.plan_dir)
        self.plan: RunPlan = load_plan(self.plan_dir, config.plan)
        check_world_size(ranks.world_size, self.plan.spec.slots_per_step)
        self.checkpoints = Path(config.run_dir) / "checkpoints"
        self.target = FrozenTarget.load(
            Path(config.target_dir), device=str(ranks.device), tap_layer_ids=config.drafter.tap_layer_ids
        )
        self.drafter = Drafter.initialised(config.drafter, config.settings.seed).to(ranks.device)
        self.optimizer = torch.optim.AdamW(
            self.drafter.parameters(),
            lr=config.settings.learning_rate,
            betas=config.settings.betas,
            weight_decay=config.settings.weight_decay,
            fused=True,
        )
        self.spikes: SpikeState = no_history(len(self.plan.spec.boundaries))
        self.start: GlobalStep = self._resume()
        self.model = ranks.parallel(self.drafter)
        self.collate = Collator(
            tokens=TokenStore(Path(config.snapshot_dir), config.shards),
            anchors_per_sample=config.settings.anchors_per_sample,
            block_size=config.drafter.block_size,
            decay=config.settings.decay,
            seed=config.settings.seed,
        )

    def train(self) -> Outcome:
        """Run to the plan's end, or until some rank is asked to stop; a checkpoint at the end of every epoch."""
        done = self.start
        if self.ranks.is_first:
            # An attempt that was killed between a checkpoint and the pruning after it left one too many.
            prune_checkpoints(self.checkpoints, keep=self.config.keep_checkpoints)
        with self._bar() as bar:
            while done < self.plan.total_steps:
                at = self.plan.position(done)
                manifest = load_planned_epoch(self.plan_dir, self.plan, at.epoch)
                self.board.open_epoch(self.plan, manifest, at)
                done, stopped = self._run_epoch(manifest, at, bar)
                self._save(done)
                if stopped:
                    break
        return Outcome(finished=done == self.plan.total_steps, first_step=self.start, last_step=done)

    def _run_epoch(self, manifest: EpochManifest, at: Position, bar: tqdm[NoReturn]) -> tuple[GlobalStep, bool]:
        """Steps done since the start of the run when it ends, and whether it ended by request."""
        began = time.perf_counter()
        losses: list[float] = []
        result: StepResult | None = None
        for prepared, seconds, result in self._steps(manifest, at):
            progress = self.board.advance()
            losses.append(result.loss)
            self._record(manifest, prepared, seconds, result, progress)
            bar.update()
            bar.set_postfix_str(f"epoch {manifest.epoch} loss {result.loss:.3f}", refresh=False)
            if result.stop_asked:
                break
        reached = self.board.read()
        if reached.epoch_steps_done == manifest.num_steps:
            self.tracker.epoch(
                EpochRecord(
                    global_step=reached.run_steps_done,
                    epoch=manifest.epoch,
                    num_steps=manifest.num_steps,
                    padding_efficiency=self.plan.epochs[manifest.epoch].padding_efficiency,
                    mean_loss=statistics.fmean(losses),
                    seconds=time.perf_counter() - began,
                )
            )
        return GlobalStep(reached.run_steps_done), result is not None and result.stop_asked

    def _steps(self, manifest: EpochManifest, at: Position) -> Iterator[tuple[PreparedStep, float, StepResult]]:
        """Each step as it was done, with the wall seconds it took, waiting for data included."""
        slots = self.ranks.share_of(manifest.slots_per_step)
        before = time.perf_counter()
        for prepared in EpochLoader(manifest, at=at, slots=slots, collate=self.collate):
            self._set_learning_rate(self.board.read().run_steps_done)
            result = run_step(
                self.model,
                self.target,
                self.optimizer,
                prepared.batches,
                ranks=self.ranks,
                max_gradient_norm=self.config.settings.max_gradient_norm,
                stop_asked=self.stop_asked(),
            )
            now = time.perf_counter()
            yield prepared, now - before, result
            before = now

    def _set_learning_rate(self, done: int) -> None:
        rate = learning_rate(
            done,
            total_steps=self.plan.total_steps,
            peak=self.config.settings.learning_rate,
            warmup_fraction=self.config.settings.warmup_fraction,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _record(
        self,
        manifest: EpochManifest,
        prepared: PreparedStep,
        seconds: float,
        result: StepResult,
        progress: Progress,
    ) -> None:
        step = prepared.step
        real = ~manifest.filler[step]
        bucket = self._bucket(float(manifest.padded_length[step][real].mean()))
        verdict, self.spikes = judge(self.spikes, loss=result.loss, bucket=bucket)
        record = StepRecord(
            global_step=progress.run_steps_done,
            epoch=manifest.epoch,
            step=step,
            attempt=self.attempt,
            loss=result.loss,
            expected_acceptance=result.expected_acceptance,
            gradient_norm=result.gradient_norm,
            learning_rate=float(self.optimizer.param_groups[0]["lr"]),
            real_tokens=int(manifest.num_tokens[step][real].sum()),
            padded_tokens=int(manifest.padded_tokens[step][real].sum()),
            supervised_tokens=int(manifest.supervised_tokens[step][real].sum()),
            num_anchors=result.num_anchors,
            bucket=bucket,
            seconds=seconds,
            data_wait_seconds=prepared.wait_seconds,
            spike=verdict.spike,
            epoch_fraction=progress.epoch_fraction,
            run_fraction=progress.run_fraction,
            run_cost_fraction=progress.run_cost_fraction,
        )
        self.tracker.step(record)
        if verdict.spike:
            self.tracker.spike(
                SpikeRecord(
                    global_step=record.global_step,
                    epoch=record.epoch,
                    step=step,
                    bucket=bucket,
                    loss=record.loss,
                    expected_loss=verdict.expected_loss,
                    sample_ids=tuple(int(i) for b in manifest.step_batches(step) if not b.filler for i in b.sample_ids),
                )
            )

    def _bucket(self, padded_length: float) -> int:
        """Index of the first boundary that holds this length."""
        boundaries = self.plan.spec.boundaries
        return next((i for i, b in enumerate(boundaries) if padded_length <= b), len(boundaries) - 1)

    def _resume(self) -> GlobalStep:
        newest = newest_whole_checkpoint(self.checkpoints)
        if newest is None:
            return GlobalStep(0)
        state = load_checkpoint(newest, self.drafter, self.optimizer)
        if (state.run, state.plan) != (self.config.run, self.plan.fingerprint):
            raise Refused(
                f"the checkpoint belongs to run {state.run} of plan {state.plan}",
                where=str(newest),
                fix=f"move it away; this is run {self.config.run} of plan {self.plan.fingerprint}",
            )
        self.spikes = state.spikes
        if self.ranks.is_first:
            logger.info("resuming after step %s of %s from %s", state.global_step, self.plan.total_steps, newest.name)
        return self.plan.global_step(state.position)

    def _save(self, done: GlobalStep) -> None:
        if self.ranks.is_first:
            self.tracker.sync()
            state = CheckpointState(
                run=self.config.run,
                plan=self.plan.fingerprint,
                position=self.plan.position(done),
                global_step=done,
                attempt=self.attempt,
                spikes=self.spikes,
            )
            save_checkpoint(self.checkpoints, state, self.drafter, self.optimizer)
            prune_checkpoints(self.checkpoints, keep=self.config.keep_checkpoints)
        self.ranks.wait_for_all()

    def _bar(self) -> tqdm[NoReturn]:
        return tqdm(
            total=self.plan.total_steps,
            initial=self.start,
            desc="training",
            unit="step",
            disable=not (self.config.show_progress and self.ranks.is_first),
        )
