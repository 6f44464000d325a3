"""What the training loop tells a tracker. Records only: no tracker, no clock, no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["warn", "alert"]
SpikeRule = Literal["point", "slow rise"]
"""What a loss was told by: itself, or the losses that led up to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One optimiser step over all ranks. Counts leave fillers out."""

    global_step: int
    """Steps done when this one ended: 1 after the first."""
    epoch: int
    step: int
    """Index of this step in its epoch, from 0."""
    attempt: int
    loss: float
    """Sum of weighted losses / sum of weights, over the whole step."""
    expected_acceptance: float
    """Mean leading correct slots of a block + 1: what acceptance length would be on the training text."""
    gradient_norm: float
    learning_rate: float
    real_tokens: int
    padded_tokens: int
    supervised_tokens: int
    num_anchors: int
    bucket: int
    """Index of the length bucket that the step's mean padded length falls into."""
    num_samples: int
    seconds: float
    """Wall time of the step, waiting for data included, by a clock that never goes back."""
    data_wait_seconds: float
    """Mean over ranks, as the parts that follow are: how long a rank stood waiting for prepared data."""
    target_seconds: float
    """In the target's forward."""
    drafter_seconds: float
    """In the drafter's forward and the loss."""
    backward_seconds: float
    """In backward, without what `communication_seconds` holds of it."""
    communication_seconds: float
    """In collectives, waiting for slower ranks included."""
    optimizer_seconds: float
    """Clipping and update."""
    rank_busy_seconds: tuple[float, ...]
    """By rank: target, drafter, backward and optimiser; its largest over its mean is the imbalance of the step."""
    rank_real_tokens: tuple[int, ...]
    """By rank: useful tokens it ran."""
    memory_bytes: int
    """Most memory of any rank: resident on a CPU, allocated at its peak on CUDA."""
    peak_share: float
    """Share of the device's peak arithmetic, estimated from the model's own count; NaN where no peak is known."""
    spike: bool
    epochs_done: int
    epoch_fraction: float
    run_fraction: float
    run_cost_fraction: float
    seconds_left: float
    """Until the plan's end, by cost at the pace so far; NaN before there is one."""
    seconds_left_low: float
    seconds_left_high: float
    """An interval around it that narrows as the run goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketSeconds:
    """What the steps of one length bucket took in an epoch, and what they would have if time followed cost."""

    bucket: int
    num_steps: int
    seconds: float
    expected_seconds: float
    """The epoch's seconds, shared out by the planned cost of its steps: what a forecast says of a bucket."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """One finished epoch, from the manifest that ran and the steps as they went."""

    global_step: int
    epoch: int
    num_steps: int
    padding_efficiency: float
    mean_loss: float
    """Mean of the step losses of this attempt's steps in the epoch."""
    seconds: float
    buckets: tuple[BucketSeconds, ...] = ()
    rank_busy_seconds: tuple[float, ...] = ()
    """By rank: what it computed, without waiting. One above the others is a slow rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRecord:
    """What telling cost an attempt, told once at its end."""

    global_step: int
    attempt: int
    num_steps: int
    """Done by this attempt."""
    seconds: float
    """Of the steps."""
    tracker_seconds: float
    """Spent inside calls of trackers, on the path of the steps."""
    longest_tracker_seconds: float
    """The longest single call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeRecord:
    """A step whose loss left the running band of its length bucket, or at which a slow rise was told."""

    global_step: int
    epoch: int
    step: int
    bucket: int
    loss: float
    expected_loss: float
    """The band's middle: median of the bucket's recent losses."""
    rule: SpikeRule
    severity: Severity
    sample_ids: tuple[int, ...]


AlarmKind = Literal[
    "spike",
    "divergence",
    "non-finite",
    "no anchors",
    "loader starving",
    "disk low",
    "acceptance gap",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class AlarmRecord:
    """Something that a person should look at: told once for each cause, and again only after the cause was gone."""

    global_step: int
    epoch: int
    step: int
    cause: AlarmKind
    message: str
    """One sentence: what was seen, against what, and what to do."""
    value: float
    limit: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceRecord:
    """Acceptance length of the weights after a step, by real decoding on a few fixed prompts beside the training."""

    global_step: int
    mean: float
    low: float
    high: float
    num_prompts: int
    expected_acceptance: float
    """The training-time estimate around that step."""
    seconds: float
    """What the measurement took, off the ranks' path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictRecord:
    """What limited throughput in an epoch, told at its end."""

    global_step: int
    epoch: int
    limit: str
    """A part of the time, or "balanced" where none stands out (training/verdict.py)."""
    share: float
    """Of the time, by that part."""
    sentence: str


Record = StepRecord | EpochRecord | AttemptRecord | SpikeRecord | AlarmRecord | AcceptanceRecord | VerdictRecord
"""Whatever a tracker can be told."""
