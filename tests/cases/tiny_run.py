"""A real training run, small enough for hundreds of steps in seconds: random target, random samples, one rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.events import Record, StepRecord
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import Position, RunPlan
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.contracts.sample import Sample
from dflash_pipeline.model.config import DrafterConfig, drafter_config
from dflash_pipeline.model.objective import Objective
from dflash_pipeline.model.target_files import target_fingerprint
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.store.plans import save_epoch, save_spec, seal_plan
from dflash_pipeline.store.tokens import write_shards
from dflash_pipeline.training.all_ranks import StepMeasure
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.loader import PreparedStep
from dflash_pipeline.training.loop import Trainer
from dflash_pipeline.training.outcome import Outcome
from dflash_pipeline.training.settings import LaunchConfig, Saving, TrainingSettings, run_fingerprint
from dflash_pipeline.training.step import StepResult
from dflash_pipeline.training.tracker import EndStatus, Params

LENGTH = 12
"""Tokens of every sample, so that a micro-batch holds as many samples as the case says."""
VOCABULARY = 64


@dataclass(kw_only=True)
class Seen:
    """What one attempt did: a tracker, and the sample ids of each step as they were served."""

    losses: dict[int, str] = field(default_factory=dict)
    batches: list[list[int]] = field(default_factory=list)
    samples_by_epoch: dict[int, list[int]] = field(default_factory=dict)
    batches_by_epoch: dict[int, int] = field(default_factory=dict)
    outcome: Outcome | None = None

    def start(self, params: Params) -> None:
        pass

    def tell(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self.losses[record.global_step] = float(record.loss).hex()

    def used(self, epoch: int, ids: list[int]) -> None:
        """Samples that one step was computed from."""
        self.batches.append(ids)
        self.batches_by_epoch[epoch] = self.batches_by_epoch.get(epoch, 0) + 1
        self.samples_by_epoch.setdefault(epoch, []).extend(ids)

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        pass


class _WatchedTrainer(Trainer):
    """Tells `seen` what each step was really computed from, whatever step it is said to be."""

    seen: Seen

    def _steps(
        self, manifest: EpochManifest, at: Position
    ) -> Iterator[tuple[PreparedStep, float, StepResult, StepMeasure]]:
        for prepared, seconds, result, measure in super()._steps(manifest, at):
            real = [batch.source for batch in prepared.batches if not batch.source.filler]
            self.seen.used(manifest.epoch, [i for source in real for i in source.sample_ids.tolist()])
            yield prepared, seconds, result, measure


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyRun:
    """A sealed plan with everything a trainer needs, in one folder."""

    config: LaunchConfig
    plan: RunPlan

    @property
    def checkpoints(self) -> Path:
        return Path(self.config.run_dir) / "checkpoints"

    def attempt(self, number: int, *, stop_after: int | None = None) -> Seen:
        """Train to the plan's end, or stop by request once `stop_after` steps of this attempt are done."""
        seen = Seen()
        trainer = _WatchedTrainer(
            self.config,
            ranks=Ranks(rank=0, world_size=1, device=torch.device("cpu")),
            tracker=seen,
            attempt=number,
            stop_asked=lambda: stop_after is not None and len(seen.losses) >= stop_after - 1,
            board=ProgressBoard(),
            beat=lambda doing: None,
        )
        trainer.seen = seen
        seen.outcome = trainer.train()
        return seen


def make_tiny_run(
    folder: Path, *, samples: int, batch_samples: int, slots: int, epochs: int, seed: int, run_name: str = "run"
) -> TinyRun:
    target = _target(folder / "target")
    lengths = np.full(samples, LENGTH, dtype=np.int64)
    random = np.random.default_rng(seed)
    corpus = [
        Sample(
            conversation_id=f"c{i}",
            split="train",
            input_ids=random.integers(0, VOCABULARY - 1, LENGTH, dtype=np.int32),
            spans=((2, LENGTH),),
        )
        for i in range(samples)
    ]
    (folder / "snapshot").mkdir(exist_ok=True)
    shards = write_shards(folder / "snapshot", corpus)
    spec = BatchingSpec(
        strategy="bucket", token_budget=batch_samples * LENGTH, slots_per_step=slots, boundaries=(LENGTH,), seed=seed
    )
    plan = _sealed(folder / "plan", lengths, spec, epochs)
    drafter = _drafter(target)
    settings = TrainingSettings(
        learning_rate=1e-3,
        end_fraction=0.0,
        betas=(0.9, 0.95),
        weight_decay=0.0,
        warmup_fraction=0.04,
        max_gradient_norm=1.0,
        anchor_share=1.0,
        anchors_per_sample=2,
        objective=Objective(weighting="decay", decay=4.0),
        features_kept=False,
        seed=seed,
    )
    identity = target_fingerprint(target)
    config = LaunchConfig(
        run=run_fingerprint(plan=plan.fingerprint, target=identity, drafter=drafter, settings=settings),
        run_dir=str(folder / run_name),
        plan_dir=str(folder / "plan"),
        plan=plan.fingerprint,
        snapshot_dir=str(folder / "snapshot"),
        shards=tuple(shard.name for shard in shards),
        features_dir=None,
        target_dir=str(target),
        target=identity,
        drafter=drafter,
        settings=settings,
        device="cpu",
        saving=Saving(keep=-1),
        max_steps=None,
        step_timeout_seconds=300.0,
        experiment="cases",
        tracking_uri="",
        artifact_location="",
        show_progress=False,
    )
    return TinyRun(config=config, plan=plan)


def _sealed(folder: Path, lengths: np.ndarray, spec: BatchingSpec, epochs: int) -> RunPlan:
    samples = SampleLengths(snapshot="case", num_tokens=lengths, num_supervised=lengths - 2)
    save_spec(folder, spec)
    summaries = []
    for epoch in range(epochs):
        manifest = build_epoch_manifest(samples, spec, epoch=epoch)
        save_epoch(folder, manifest)
        summaries.append(manifest.summary())
    plan = RunPlan(snapshot="case", spec=spec, epochs=tuple(summaries))
    seal_plan(folder, plan)
    return plan


def _qwen() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=False,
    )


def _target(folder: Path) -> Path:
    if not folder.exists():
        torch.manual_seed(0)
        Qwen3ForCausalLM(_qwen()).save_pretrained(folder)
    return folder


def _drafter(target: Path) -> DrafterConfig:
    return drafter_config(
        _qwen(), num_layers=1, block_size=4, tap_layer_ids=(0,), mask_token_id=VOCABULARY - 1, intermediate_size=16
    )
