"""Where an attempt begins: at the newest checkpoint that is whole and belongs to this very run."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path

import torch
from torch import nn

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.training.checkpoint import (
    CheckpointState,
    list_checkpoints,
    load_checkpoint,
    load_state,
    newest_whole_checkpoint,
)
from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.warm_start import load_first_weights

logger = logging.getLogger(__name__)


def resume(
    checkpoints: Path, config: LaunchConfig, plan: RunPlan, model: nn.Module, optimizer: torch.optim.Optimizer
) -> CheckpointState | None:
    """Load the newest whole checkpoint into model and optimiser; None when there is none: the run's first step comes.

    With a warm start the model then has its weights, and the optimiser is as new. Refused, before anything is loaded,
    when the checkpoint is of another run or plan, or of another drafter or objective.
    """
    newest = newest_whole_checkpoint(checkpoints)
    if newest is None:
        if damaged := list_checkpoints(checkpoints):
            logger.warning("no checkpoint of %s is whole: the run starts over at its first step", len(damaged))
        if config.warm_start is not None:
            load_first_weights(Path(config.run_dir), config.warm_start, model)
        return None
    state = load_state(newest)
    if (state.run, state.plan) != (config.run, plan.fingerprint):
        raise Refused(
            f"the checkpoint belongs to run {state.run} of plan {state.plan}",
            where=str(newest),
            fix=f"move it away; this is run {config.run} of plan {plan.fingerprint}",
        )
    changed = [
        *_changes("drafter", state.drafter, config.drafter),
        *_changes("objective", state.objective, config.settings.objective),
    ]
    if changed:
        raise Refused(
            f"the checkpoint was trained with other settings: {'; '.join(changed)}",
            where=str(newest),
            fix="put the settings back, or start the run over beside it with --fresh",
        )
    return load_checkpoint(newest, model, optimizer)


def _changes(section: str, before: object, now: object) -> list[str]:
    return [
        f"{section}.{field.name} {getattr(before, field.name)}, now {getattr(now, field.name)}"
        for field in fields(before)  # type: ignore[arg-type]  # both are frozen records of one kind
        if getattr(before, field.name) != getattr(now, field.name)
    ]
