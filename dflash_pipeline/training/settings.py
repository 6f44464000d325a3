"""What a training run is asked to do: the part that is its identity, and the part that is only how it is launched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dflash_pipeline.contracts.errors import ContractBroken
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


StartWish = Literal["scratch", "champion"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """A drafter with whose weights a run begins, in place of those that its seed gives."""

    run: str
    """That made it."""
    export: str
    """Name of its folder in exports/."""
    weights: str
    """SHA-256 of its model.safetensors: part of the run's identity."""

    def __post_init__(self) -> None:
        if not self.run or not re.fullmatch("[0-9a-f]{64}", self.weights):
            raise ContractBroken(
                f"run {self.run!r} with weights {self.weights!r}",
                where="warm start",
                fix="name the run, and give the SHA-256 of its weights in hexadecimal digits",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLine:
    """What names a run, its first weights aside: runs of one line differ in nothing else."""

    plan: str
    target: str
    drafter: DrafterConfig
    settings: TrainingSettings

    def identity(self, start: WarmStart | None) -> str:
        """The run's name. Without a warm start the seed, which is among the settings, says its first weights."""
        parts = {} if start is None else {"initial_weights": start.weights}
        return fingerprint(
            plan=self.plan,
            target=self.target,
            drafter=self.drafter,
            settings=self.settings,
            version=TRAINING_VERSION,
            **parts,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """Everything a rank needs, as one JSON file: paths of what it reads and writes, and how it is run."""

    run: str
    """Name of the run: the fingerprint of (plan, target, drafter, settings) and of the weights of a warm start, with
    `-2`, `-3` … when started afresh."""
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
    wanted_start: StartWish = "scratch"
    """What the recipe asked for. A line without a champion begins from scratch whatever was wanted."""
    warm_start: WarmStart | None = None
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

    @property
    def line(self) -> RunLine:
        return RunLine(plan=self.plan, target=self.target, drafter=self.drafter, settings=self.settings)

    @property
    def start_text(self) -> str:
        """Whose weights the run begins with, for a person."""
        return "scratch" if self.warm_start is None else f"champion {self.warm_start.run}"


def run_fingerprint(*, plan: str, target: str, drafter: DrafterConfig, settings: TrainingSettings) -> str:
    """Of a run from scratch."""
    return RunLine(plan=plan, target=target, drafter=drafter, settings=settings).identity(None)
