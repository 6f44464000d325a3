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
    seconds: float
    data_wait_seconds: float
    spike: bool
    epoch_fraction: float
    run_fraction: float
    run_cost_fraction: float


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
