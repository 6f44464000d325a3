"""A run that trains in a second: a snapshot, a plan and a target on disk, without Dagster, database or torchrun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.events import EpochRecord, Record, SpikeRecord, StepRecord
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.contracts.sample import Sample
from dflash_pipeline.model.config import drafter_config
from dflash_pipeline.model.objective import Objective
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.store.plans import load_plan, plan_folder, save_epoch, seal_plan
from dflash_pipeline.store.tokens import write_shards
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.loop import Trainer
from dflash_pipeline.training.outcome import Outcome
from dflash_pipeline.training.settings import LaunchConfig, Saving, TrainingSettings
from dflash_pipeline.training.tracker import EndStatus, Params

VOCAB, TAPS, BLOCK = 61, (0, 1), 4
ALONE = Ranks(rank=0, world_size=1, device=torch.device("cpu"))


def toy_target() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    return Qwen3ForCausalLM(config)


def write_toy(folder: Path, *, lengths: Sequence[int], spec: BatchingSpec, epochs: int) -> LaunchConfig:
    """Samples of these lengths, supervised from their third token on, and every epoch's manifest, sealed."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = write_shards(folder, [_sample(i, length) for i, length in enumerate(lengths)])
    supervised = np.array(lengths) - 2
    samples = SampleLengths(snapshot="toy", num_tokens=np.array(lengths), num_supervised=supervised)
    plan_dir = plan_folder(folder / "plans", snapshot="toy", spec=spec)
    manifests = [build_epoch_manifest(samples, spec, epoch=epoch) for epoch in range(epochs)]
    for manifest in manifests:
        save_epoch(plan_dir, manifest)
    plan = RunPlan(snapshot="toy", spec=spec, epochs=tuple(m.summary() for m in manifests))
    seal_plan(plan_dir, plan)
    target = toy_target()
    target.save_pretrained(folder / "target")
    return LaunchConfig(
        run="toyrun",
        run_dir=str(folder / "run"),
        plan_dir=str(plan_dir),
        plan=plan.fingerprint,
        snapshot_dir=str(folder),
        shards=tuple(shard.name for shard in shards),
        features_dir=None,
        target_dir=str(folder / "target"),
        target="toy",
        drafter=drafter_config(
            target.config,
            num_layers=1,
            block_size=BLOCK,
            tap_layer_ids=TAPS,
            mask_token_id=VOCAB - 1,
            intermediate_size=None,
        ),
        settings=TrainingSettings(
            learning_rate=5e-3,
            end_fraction=0.1,
            betas=(0.9, 0.95),
            weight_decay=0.01,
            warmup_fraction=0.1,
            max_gradient_norm=1.0,
            anchor_share=1.0,
            anchors_per_sample=3,
            objective=Objective(weighting="decay", decay=2.0),
            features_kept=False,
            seed=5,
        ),
        device="cpu",
        saving=Saving(keep=-1),
        max_steps=None,
        step_timeout_seconds=60.0,
        experiment="toy",
        tracking_uri="",
        artifact_location="",
        show_progress=False,
    )


def plan_of(config: LaunchConfig) -> RunPlan:
    return load_plan(Path(config.plan_dir), config.plan)


@dataclass(kw_only=True)
class Recorder:
    """A tracker that remembers."""

    steps: list[StepRecord] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)
    spikes: list[SpikeRecord] = field(default_factory=list)
    others: list[Record] = field(default_factory=list)

    def start(self, params: Params) -> None:
        pass

    def tell(self, record: Record) -> None:
        match record:
            case StepRecord():
                self.steps.append(record)
            case EpochRecord():
                self.epochs.append(record)
            case SpikeRecord():
                self.spikes.append(record)
            case _:
                self.others.append(record)

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        pass

    @property
    def losses(self) -> list[tuple[int, str]]:
        return [(record.global_step, record.loss.hex()) for record in self.steps]


@dataclass(frozen=True, kw_only=True)
class Trained:
    outcome: Outcome
    recorder: Recorder
    weights: dict[str, torch.Tensor]
    trainer: Trainer


def train(
    config: LaunchConfig,
    *,
    run_dir: Path,
    stop_after: int | None = None,
    watch: Callable[[Trainer], None] | None = None,
) -> Trained:
    """One attempt in this process; with `stop_after` it is asked to stop in that step."""
    board, recorder = ProgressBoard(), Recorder()
    trainer = Trainer(
        replace(config, run_dir=str(run_dir)),
        ranks=ALONE,
        tracker=recorder,
        attempt=1,
        stop_asked=lambda: stop_after is not None and board.read().run_steps_done + 1 >= stop_after,
        board=board,
        beat=lambda doing: None,
    )
    if watch:
        watch(trainer)
    outcome = trainer.train()
    weights = {name: tensor.clone() for name, tensor in trainer.drafter.state_dict().items()}
    return Trained(outcome=outcome, recorder=recorder, weights=weights, trainer=trainer)


def _sample(number: int, length: int) -> Sample:
    ids = np.random.default_rng(number).integers(0, VOCAB - 1, length).astype(np.int32)
    return Sample(conversation_id=f"c{number}", split="train", input_ids=ids, spans=((2, length),))
