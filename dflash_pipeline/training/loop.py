"""The run: epoch after epoch of the plan, step after step of its manifest, from wherever the last checkpoint stands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from tqdm import tqdm

from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import GlobalStep, Position, RunPlan
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.store.features import FeatureStore
from dflash_pipeline.store.plans import load_plan, load_planned_epoch
from dflash_pipeline.store.tokens import TokenStore
from dflash_pipeline.training.checkpoint import CheckpointState, lend_tensors
from dflash_pipeline.training.checkpoint_writer import CheckpointWriter
from dflash_pipeline.training.collate import AnchorRule, Collator
from dflash_pipeline.training.distributed import Ranks, check_world_size
from dflash_pipeline.training.loader import EpochLoader, PreparedStep
from dflash_pipeline.training.meter import EpochMeter
from dflash_pipeline.training.reporter import Reporter
from dflash_pipeline.training.resume import resume
from dflash_pipeline.training.saving import SaveClock
from dflash_pipeline.training.schedule import learning_rate
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.sharding import load_target, parallel_drafter
from dflash_pipeline.training.spikes import no_history
from dflash_pipeline.training.step import StepResult, Wishes, run_step
from dflash_pipeline.training.tracker import Tracker

MOST_SKIPPED = 3
"""Steps in a row whose loss or gradient may be other than finite; one more ends the run."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How an attempt ended."""

    first_step: int
    last_step: int
    total_steps: int
    asked_to_stop: bool

    @property
    def finished(self) -> bool:
        """False: asked to stop, or at a limit of steps, with a checkpoint at the step it stopped after."""
        return self.last_step == self.total_steps


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
        beat: Callable[[str], None],
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.attempt = attempt
        self.stop_asked = stop_asked
        self.board = board
        self.beat = beat
        self.plan_dir = Path(config.plan_dir)
        self.plan: RunPlan = load_plan(self.plan_dir, config.plan)
        check_world_size(ranks.world_size, self.plan.spec.slots_per_step)
        self.target = load_target(
            Path(config.target_dir), ranks, config.sharding.target, tap_layer_ids=config.drafter.tap_layer_ids
        )
        drafter = Drafter.initialised(config.drafter, config.settings.seed, config.execution)
        self.drafter = drafter.to(ranks.device)
        self.model = parallel_drafter(self.drafter, ranks, config.sharding.drafter)
        self.optimizer = torch.optim.AdamW(
            self.drafter.parameters(),
            lr=config.settings.learning_rate,
            betas=config.settings.betas,
            weight_decay=config.settings.weight_decay,
            fused=True,
        )
        checkpoints = Path(config.run_dir) / "checkpoints"
        before = resume(checkpoints, config, self.plan, self.drafter, self.optimizer)
        self.start = GlobalStep(0) if before is None else self.plan.global_step(before.position)
        self.skipped_in_a_row = 0 if before is None else before.skipped_in_a_row
        self.reporter = Reporter(
            self.plan,
            attempt=attempt,
            spikes=no_history(len(self.plan.spec.boundaries)) if before is None else before.spikes,
            meter=EpochMeter(epoch=0) if before is None else before.meter,
            tracker=tracker,
        )
        self.writer = CheckpointWriter(checkpoints, keep=config.saving.keep) if ranks.is_first else None
        self.clock = SaveClock(config.saving)
        tokens = TokenStore(Path(config.snapshot_dir), config.shards)
        self.collate = Collator(
            tokens=tokens,
            features=FeatureStore(Path(config.features_dir), tokens.lengths()) if config.features_dir else None,
            anchors=AnchorRule(
                share=config.settings.anchor_share,
                most=config.settings.anchors_per_sample,
                seed=config.settings.seed,
            ),
            block_size=config.drafter.block_size,
            objective=config.settings.objective,
            pin_memory=ranks.device.type == "cuda",
        )
        if ranks.is_first and self.start:
            logger.info("resuming after step %s of %s", self.start, self.plan.total_steps)

    def train(self) -> Outcome:
        """Run to the plan's end or to the limit of steps, or until some rank is asked to stop."""
        done, stopped = self.start, False
        last = min(self.plan.total_steps, self.config.max_steps or self.plan.total_steps)
        if done > last:
            raise Refused(
                f"the run stands at step {done} of {self.plan.total_steps} already",
                where="training.max_steps",
                fix=f"raise it above {done}, leave it out, or start over beside the run with --fresh",
            )
        try:
            with self._bar() as bar:
                while done < last and not stopped:
                    at = self.plan.position(done)
                    self.beat(f"the opening of epoch {at.epoch}")
                    manifest = load_planned_epoch(self.plan_dir, self.plan, at.epoch)
                    self.board.open_epoch(self.plan, manifest, at)
                    done, stopped = self._run_epoch(manifest, at, GlobalStep(last), bar)
        finally:
            self.beat("the last checkpoint")
            if self.writer is not None:
                self.writer.wait()
        self.ranks.wait_for_all()
        return Outcome(first_step=self.start, last_step=done, total_steps=self.plan.total_steps, asked_to_stop=stopped)

    def _run_epoch(
        self, manifest: EpochManifest, at: Position, last: GlobalStep, bar: tqdm[NoReturn]
    ) -> tuple[GlobalStep, bool]:
        """Steps done since the start of the run when it ends, and whether it ended by request."""
        self.reporter.open_epoch(manifest.epoch)
        for prepared, seconds, result in self._steps(manifest, at):
            progress = self.board.advance()
            done = GlobalStep(progress.run_steps_done)
            rate = float(self.optimizer.param_groups[0]["lr"])
            self.reporter.step(manifest, prepared, result, progress, seconds=seconds, learning_rate=rate)
            bar.update()
            bar.set_postfix_str(f"epoch {manifest.epoch} loss {result.loss:.3f}", refresh=False)
            self._count_skipped(manifest, prepared, result)
            ended = progress.epoch_steps_done == manifest.num_steps
            if ended:
                self.reporter.end_epoch(manifest, progress)
            if ended or result.wishes.save or result.wishes.stop or done == last:
                self._save(done)
            if result.wishes.stop or done == last:
                return done, result.wishes.stop
        return GlobalStep(self.board.read().run_steps_done), False

    def _steps(self, manifest: EpochManifest, at: Position) -> Iterator[tuple[PreparedStep, float, StepResult]]:
        """Each step as it was done, with the wall seconds it took, waiting for data included."""
        slots = self.ranks.share_of(manifest.slots_per_step)
        settings = self.config.settings
        before = time.perf_counter()
        self.beat(f"epoch {manifest.epoch} step {at.step}")
        for prepared in EpochLoader(manifest, at=at, slots=slots, collate=self.collate):
            self._set_learning_rate(self.board.read().run_steps_done)
            result = run_step(
                self.model,
                self.target,
                self.optimizer,
                prepared.batches,
                objective=settings.objective,
                ranks=self.ranks,
                max_gradient_norm=settings.max_gradient_norm,
                wishes=Wishes(stop=self.stop_asked(), save=self.clock.is_due()),
            )
            now = time.perf_counter()
            self.beat(f"epoch {manifest.epoch} step {prepared.step + 1}")
            yield prepared, now - before, result
            before = now

    def _set_learning_rate(self, done: int) -> None:
        settings = self.config.settings
        rate = learning_rate(
            done,
            total_steps=self.plan.total_steps,
            peak=settings.learning_rate,
            warmup_fraction=settings.warmup_fraction,
            end_fraction=settings.end_fraction,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _count_skipped(self, manifest: EpochManifest, prepared: PreparedStep, result: StepResult) -> None:
        """All ranks see the same numbers, so all stop in the same step."""
        self.skipped_in_a_row = 0 if result.applied else self.skipped_in_a_row + 1
        if self.skipped_in_a_row > MOST_SKIPPED:
            raise Failed(
                f"loss or gradient was not finite in {self.skipped_in_a_row} steps in a row (loss {result.loss}, "
                f"gradient norm {result.gradient_norm})",
                where=f"epoch {manifest.epoch} step {prepared.step}",
                fix="start another run with a lower training.learning_rate, or without the samples of the step, "
                "which are with its spike in MLflow",
            )

    def _save(self, done: GlobalStep) -> None:
        self.clock.saved()
        if self.writer is None:
            lend_tensors(self.drafter, self.optimizer)
            return
        self.reporter.tracker.sync()  # A checkpoint must never know more than the event log.
        state = CheckpointState(
            run=self.config.run,
            plan=self.plan.fingerprint,
            snapshot=self.plan.snapshot,
            position=self.plan.position(done),
            global_step=done,
            attempt=self.attempt,
            spikes=self.reporter.spikes,
            meter=self.reporter.meter,
            skipped_in_a_row=self.skipped_in_a_row,
            drafter=self.config.drafter,
            objective=self.config.settings.objective,
        )
        self.writer.save(state, self.drafter, self.optimizer)

    def _bar(self) -> tqdm[NoReturn]:
        return tqdm(
            total=self.plan.total_steps,
            initial=self.start,
            desc="training",
            unit="step",
            disable=not (self.config.show_progress and self.ranks.is_first),
        )
