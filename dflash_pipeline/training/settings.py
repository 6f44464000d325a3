"""What a training run is asked to do: the part that is its identity, and the part that is only how it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.model.config import PLAIN, DrafterConfig, Execution
from dflash_pipeline.model.objective import Objective
from dflash_pipeline.training.early import EarlySettings

TRAINING_VERSION = 2
"""Part of a run's identity: raised when the same settings would train another drafter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSettings:
    """Settings that decide the weights. Ranks and threads are not among them: a step is the same on 1, 2 or 8 ranks."""

    learning_rate: float
    end_fraction: float
    """Of the learning rate, in the last step."""
    betas: tuple[float, float]
    weight_decay: float
    warmup_fraction: float
    max_gradient_norm: float
    anchor_share: float
    anchors_per_sample: int
    objective: Objective
    features_kept: bool
    """Features come from disk, computed once, and not in the batch: equal but for their last bits."""
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """When checkpoints are written, besides at the end of every epoch, and how many stay."""

    keep: int
    """The newest; -1 for all."""
    every_steps: int | None = None
    every_minutes: float | None = None


DrafterSharding = Literal["ddp", "fsdp"]
TargetSharding = Literal["none", "fsdp"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    """Whose weights each rank holds only a part of. Changes memory and traffic, not what is trained."""

    drafter: DrafterSharding = "ddp"
    """`fsdp`: of weights, gradients and moments."""
    target: TargetSharding = "none"
    """`fsdp`: of its layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """Everything a rank needs, as one JSON file: paths of what it reads and writes, and how it is run."""

    run: str
    """Name of the run: the fingerprint of (plan, target, drafter, settings), with `-2`, `-3` … when started afresh."""
    run_dir: str
    plan_dir: str
    plan: str
    snapshot_dir: str
    shards: tuple[str, ...]
    features_dir: str | None
    """Where the target's features of every training sample lie, if they are kept."""
    target_dir: str
    target: str
    drafter: DrafterConfig
    settings: TrainingSettings
    device: str
    saving: Saving
    sharding: Sharding = Sharding()
    execution: Execution = PLAIN
    max_steps: int | None
    """Stop after this many steps of the plan; the learning rate still looks to the plan's end."""
    early: EarlySettings | None = None
    """None: no acceptance is measured beside the training."""
    step_timeout_seconds: float
    """A rank whose step takes longer ends the run."""
    experiment: str
    recipe: str = ""
    """Fingerprint of the whole recipe; empty where it is not known."""
    tracking_uri: str
    """Without a password: what a server asks for is in the environment."""
    artifact_location: str | None
    """None: where the server keeps them."""
    points_a_metric: int = 5000
    """Steps between points of a chart are as many as make it no longer than this."""
    show_progress: bool


def run_fingerprint(*, plan: str, target: str, drafter: DrafterConfig, settings: TrainingSettings) -> str:
    return fingerprint(plan=plan, target=target, drafter=drafter, settings=settings, version=TRAINING_VERSION)
