"""What an attempt is made of, as a launch asks for it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.plan import GlobalStep, RunPlan
from dflash_pipeline.store.features import FeatureStore
from dflash_pipeline.store.tokens import TokenStore
from dflash_pipeline.training.collate import AnchorRule, Collator
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.early_answers import EarlyAnswers
from dflash_pipeline.training.settings import LaunchConfig, TrainingSettings


def optimizer_of(drafter: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW over all weights, in one fused update."""
    return torch.optim.AdamW(
        drafter.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def collator_of(config: LaunchConfig, ranks: Ranks) -> Collator:
    """From the snapshot's shards, with features from disk where they are kept."""
    tokens, settings = TokenStore(Path(config.snapshot_dir), config.shards), config.settings
    return Collator(
        tokens=tokens,
        features=FeatureStore(Path(config.features_dir), tokens.lengths()) if config.features_dir else None,
        anchors=AnchorRule(share=settings.anchor_share, most=settings.anchors_per_sample, seed=settings.seed),
        block_size=config.drafter.block_size,
        objective=settings.objective,
        pin_memory=ranks.device.type == "cuda",
    )


def last_step_of(config: LaunchConfig, plan: RunPlan, done: int) -> GlobalStep:
    """The plan's end, or the limit of steps before it. Refused when the run is beyond that already."""
    last = min(plan.total_steps, config.max_steps or plan.total_steps)
    if done > last:
        raise Refused(
            f"the run stands at step {done} of {plan.total_steps} already",
            where="training.max_steps",
            fix=f"raise it above {done}, leave it out, or start over beside the run with --fresh",
        )
    return GlobalStep(last)


def early_answers_of(config: LaunchConfig, ranks: Ranks, *, done: int, total_steps: int) -> EarlyAnswers | None:
    """Of the first rank, where acceptance is measured beside the training."""
    if config.early is None or not ranks.is_first:
        return None
    return EarlyAnswers(config.early, Path(config.run_dir), done=done, total_steps=total_steps)
