"""What a recipe says of micro-batches, steps and epochs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dflash_pipeline.recipe.section import Section

MAX_EPOCHS = 64
"""Dagster's epoch partitions are the static keys 000 to 063."""


class Batching(Section):
    """How samples become micro-batches and steps."""

    strategy: Literal["sorted", "shuffle", "bucket", "window", "varlen"] = Field(
        "window", description="How samples share micro-batches and steps; `dflash forecast` compares them."
    )
    num_buckets: Annotated[int, Field(ge=1, le=512)] | Literal["auto"] = Field(
        6, description="Length buckets; auto for the knee of the efficiency curve."
    )
    boundary_objective: Literal["boundary", "batch-max"] = Field(
        "boundary",
        description="Boundaries of least padding up to themselves, or up to the expected longest of a micro-batch.",
    )
    boundary_grid: int = Field(1, ge=1, description="Boundaries are multiples of this; 64 suits static shapes.")
    padding: Literal["batch-max", "boundary"] = Field(
        "batch-max", description="Pad to the longest sample of the micro-batch, or (static shapes) to the boundary."
    )
    token_budget: int = Field(32768, ge=1, le=2**40, description="Most padded tokens in one micro-batch.")
    slots_per_step: int = Field(
        8, ge=1, le=65_536, description="Micro-batches in one optimiser step; ranks must divide it."
    )
    micro_batches_per_rank: int = Field(
        1,
        ge=1,
        le=65_536,
        description="How many a rank runs in a step, for the ranks that their cost is balanced over.",
    )
    quadratic_length: float | None = Field(
        None, gt=0, description="Length at which attention costs as much as the rest."
    )
    anchor_cost: float = Field(0.0, ge=0, description="Cost of one supervised token, in tokens; 0 to leave it out.")
    tail: Literal["fill", "drop"] = Field(
        "fill",
        description="The last step of an epoch: filled up with micro-batches that count for nothing, or dropped.",
    )
    overlong: Literal["drop", "refuse"] = Field("refuse", description="A sample above the token budget.")
    epochs: int = Field(
        6, ge=1, le=MAX_EPOCHS, description="Passes over the training samples, each in an order of its own."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Of the order of samples in every epoch.")
