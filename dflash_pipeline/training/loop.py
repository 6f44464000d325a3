"""The run: epoch after epoch of the plan, step after step of its manifest, from wherever the last checkpoint stands."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from dflash_pipeline.contracts.events import AcceptanceRecord
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import GlobalStep, Position, RunPlan
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.store.plans import load_plan, load_planned_epoch
from dflash_pipeline.training.all_ranks import RankMeasure, StepMeasure, measure_step, memory_in_use, real_tokens
from dflash_pipeline.training.arithmetic import layer_weights, operations, peak_operations
from dflash_pipeline.training.checkpoint import WEIGHTS, CheckpointState, checkpoint_name, lend_tensors
from dflash_pipeline.training.checkpoint_writer import CheckpointWriter
from dflash_pipeline.training.distributed import Ranks, check_world_size
from dflash_pipeline.training.early_answers import lend_weights
from dflash_pipeline.training.loader import EpochLoader, PreparedStep
from dflash_pipeline.training.meter import EpochMeter
from dflash_pipeline.training.outcome import Outcome
from dflash_pipeline.training.parts import collator_of, early_answers_of, last_step_of, optimizer_of
from dflash_pipeline.training.progress_text import progress_text
from dflash_pipeline.training.reporter import Reporter
from dflash_pipeline.training.resume import resume
from dflash_pipeline.training.saving import SaveClock
from dflash_pipeline.training.schedule import set_learning_rate
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.sharding import load_target, parallel_drafter
from dflash_pipeline.training.skipped import skipped_in_a_row
from dflash_pipeline.training.spikes import no_history
from dflash_pipeline.training.step import StepResult, Wishes, run_step
from dflash_pipeline.training.step_clock import clock_of, watch_gradients
from dflash_pipeline.training.tracker import Tracker

logger = logging.getLogger(__name__)


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
        self.step_clock = clock_of(ranks.device)
        watch_gradients(self.model, self.step_clock)
        self.peak_operations = peak_operations(ranks.device)
        self.optimizer = optimizer_of(self.drafter, config.settings)
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
        self.early = early_answers_of(config, ranks, done=self.start, total_steps=self.plan.total_steps)
        self.collate = collator_of(config, ranks)
        if ranks.is_first and self.start:
            logger.info("resuming after step %s of %s", self.start, self.plan.total_steps)

    def train(self) -> Outcome:
        """Run to the plan's end or to the limit of steps, or until some rank is asked to stop."""
        done, asked = self.start, Wishes()
        last = last_step_of(self.config, self.plan, done)
        try:
            with self._bar() as bar:
                while done < last and not (asked.stop or asked.enough):
                    at = self.plan.position(done)
                    self.beat(f"the opening of epoch {at.epoch}")
                    manifest = load_planned_epoch(self.plan_dir, self.plan, at.epoch)
                    self.board.open_epoch(self.plan, manifest, at)
                    done, asked = self._run_epoch(manifest, at, last, bar)
        finally:
            self.beat("the last checkpoint")
            if self.writer is not None:
                self.writer.wait()
        self.ranks.wait_for_all()
        if not asked.stop:
            self._measure_last(done)
        return Outcome(
            first_step=self.start,
            last_step=done,
            total_steps=self.plan.total_steps,
            asked_to_stop=asked.stop,
            stopped_early=asked.enough,
        )

    def _run_epoch(
        self, manifest: EpochManifest, at: Position, last: GlobalStep, bar: tqdm[NoReturn]
    ) -> tuple[GlobalStep, Wishes]:
        """Steps done since the start of the run when it ends, and the wishes of its last step."""
        self.reporter.open_epoch(manifest.epoch)
        for prepared, seconds, result, measure in self._steps(manifest, at):
            progress = self.board.advance()
            done = GlobalStep(progress.run_steps_done)
            rate = float(self.optimizer.param_groups[0]["lr"])
            told = self.reporter.step(
                manifest, prepared, result, progress, measure, seconds=seconds, learning_rate=rate
            )
            text = progress_text(told, num_epochs=self.plan.num_epochs)
            bar.set_postfix_str(f"{text}, loss {result.loss:.3f}", refresh=False)
            bar.update()
            where = f"epoch {manifest.epoch} step {prepared.step}"
            self.skipped_in_a_row = skipped_in_a_row(self.skipped_in_a_row, result, where=where)
            ended = progress.epoch_steps_done == manifest.num_steps
            if ended:
                self.reporter.end_epoch(manifest, progress)
            self._answer_early(done, result)
            over = result.wishes.stop or result.wishes.enough or done == last
            if ended or result.wishes.save or over:
                self._save(done)
            if over:
                return done, result.wishes
        return GlobalStep(self.board.read().run_steps_done), Wishes()

    def _steps(
        self, manifest: EpochManifest, at: Position
    ) -> Iterator[tuple[PreparedStep, float, StepResult, StepMeasure]]:
        """Each step as it was done, with the wall seconds it took, waiting for data included, and where they went."""
        slots = self.ranks.share_of(manifest.slots_per_step)
        settings = self.config.settings
        before = time.perf_counter()
        self.beat(f"epoch {manifest.epoch} step {at.step}")
        for prepared in EpochLoader(manifest, at=at, slots=slots, collate=self.collate):
            done = self.board.read().run_steps_done
            set_learning_rate(self.optimizer, settings, done, total_steps=self.plan.total_steps)
            result = run_step(
                self.model,
                self.target,
                self.optimizer,
                prepared.batches,
                objective=settings.objective,
                ranks=self.ranks,
                max_gradient_norm=settings.max_gradient_norm,
                wishes=self._wishes(),
                clock=self.step_clock,
            )
            measure = measure_step(self.ranks, self._measure(prepared), peak_operations=self.peak_operations)
            now = time.perf_counter()
            self.beat(f"epoch {manifest.epoch} step {prepared.step + 1}")
            yield prepared, now - before, result, measure
            before = now

    def _measure(self, prepared: PreparedStep) -> RankMeasure:
        known = math.isfinite(self.peak_operations)
        weights = layer_weights(self.target.config) if known else 0
        return RankMeasure(
            data_wait=prepared.wait_seconds,
            times=self.step_clock.take(),
            real_tokens=real_tokens(prepared.batches),
            memory_bytes=memory_in_use(self.ranks.device),
            operations=operations(self.config.drafter, weights, prepared.batches) if known else math.nan,
        )

    def _wishes(self) -> Wishes:
        step = self.board.read().run_steps_done + 1
        return Wishes(
            stop=self.stop_asked(),
            save=self.clock.is_due(),
            measure=self.early is not None and self.early.is_due(step),
            enough=self.early is not None and self.early.reason is not None,
        )

    def _answer_early(self, done: GlobalStep, result: StepResult) -> None:
        """Hands weights out to be measured where any rank wishes it, and tells what has been measured."""
        if self.early is None:
            if result.wishes.measure:
                lend_weights(self.drafter)
            return
        self.early.note(done, result.expected_acceptance)
        if result.wishes.measure:
            self.early.hand_out(done, self.drafter)
        self._tell(self.early.arrived())
        if self.early.reason is not None and not result.wishes.enough:
            logger.warning("the run ends after the next step: %s", self.early.reason)

    def _measure_last(self, done: GlobalStep) -> None:
        if self.early is not None:
            weights = Path(self.config.run_dir) / "checkpoints" / checkpoint_name(done) / WEIGHTS
            self._tell(self.early.last(done, weights, goes_on=self._goes_on))

    def _goes_on(self) -> bool:
        self.beat("the last measurement of acceptance")
        return not self.stop_asked()

    def _tell(self, records: Sequence[AcceptanceRecord]) -> None:
        for record in records:
            self.reporter.tracker.tell(record)

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
            # Its own guess at the time left goes by steps, which differ in cost: it would contradict the text.
            bar_format="{desc} |{bar:20}| {n_fmt}/{total_fmt} steps, {elapsed}{postfix}",
            disable=not (self.config.show_progress and self.ranks.is_first),
        )
