"""What a recipe says of the drafter and its training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dflash_pipeline.recipe.section import Section, Share


class Drafter(Section):
    """The shape of the small model. What is not given follows the target."""

    num_layers: int = Field(5, ge=1, le=256, description="Layers of the drafter.")
    block_size: int = Field(
        16, ge=2, le=4096, description="Tokens of a block: the anchor and what is drafted after it."
    )
    tap_layer_ids: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, description="Target layers (0-based) whose outputs feed the drafter; null for the evenly spaced rule."
    )
    mask_token_id: int | None = Field(
        None,
        ge=0,
        description="Stands for positions to be drafted; null for the tokenizer's mask token or first unused row.",
    )
    intermediate_size: int | None = Field(None, ge=1, description="Width of the MLPs; null for the target's.")
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = Field(
        None, description="One a layer; null for full attention in all. Sliding layers look `sliding_window` back."
    )
    sliding_window: int | None = Field(None, ge=1, description="Positions, the query's own among them.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of the first weights, and of the anchors.")


class Training(Section):
    """One distributed run."""

    num_ranks: int = Field(
        8,
        ge=1,
        le=65_536,
        description="Processes; a divisor of slots_per_step. A launch fact, not part of the run's identity.",
    )
    threads_per_rank: int = Field(1, ge=1, description="Of torch, on the CPU.")
    device: Literal["cpu", "cuda"] = Field("cpu", description="What the ranks compute on; `cuda` takes one GPU a rank.")
    drafter_sharding: Literal["ddp", "fsdp"] = Field(
        "ddp", description="Each rank holds the drafter, its gradients and moments, or with `fsdp` only a part of them."
    )
    target_sharding: Literal["none", "fsdp"] = Field(
        "none", description="Each rank holds the target's layers, or with `fsdp` only a part of each of them."
    )
    activation_checkpointing: bool = Field(
        False, description="Less memory for activations, and about a third more work in the drafter."
    )
    compile: bool = Field(
        False, description="torch.compile for the drafter's layers: slow to start, faster steps; needs a C++ compiler."
    )
    warm_start: Literal["scratch", "champion"] = Field(
        "scratch",
        description="First weights: new ones, or the champion's while there is one.",
    )
    learning_rate: float = Field(6e-4, gt=0, le=10, description="At the end of the warm-up, the highest of the run.")
    betas: tuple[Share, Share] = Field((0.9, 0.95), description="AdamW's two; each at least 0 and below 1.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's, decoupled, of every weight.")
    warmup_fraction: float = Field(0.04, ge=0, lt=1, description="Share of the steps in which the rate rises.")
    end_fraction: float = Field(0.0, ge=0, le=1, description="Share of the learning rate in the last step.")
    max_gradient_norm: float = Field(1.0, gt=0, description="A larger norm of the whole gradient is scaled down to it.")
    anchor_share: float | None = Field(
        None, ge=1e-6, le=1, description="Blocks trained a supervised token; null for 2 / block_size."
    )
    anchors_per_sample: int = Field(512, ge=1, description="Most blocks trained in one sample and epoch.")
    weighting: Literal["decay", "dpace"] = Field(
        "decay", description="Weights of a block's slots: fixed decay, or D-PACE, by what the drafter gets right."
    )
    decay: float | None = Field(
        None, ge=0.01, description="Gamma of the slot weights exp(-(j-1)/gamma); null for 7, 5 or 4 by block size."
    )
    dpace_smoothing: float = Field(0.5, ge=0, le=1, description="D-PACE's alpha.")
    kl: float = Field(
        0.0, ge=0, le=1, description="Share of the divergence from the target's own distribution in the loss."
    )
    keep_checkpoints: int = Field(2, description="Newest checkpoints kept; -1 for all.")
    checkpoint_steps: int | None = Field(
        None, ge=1, description="A checkpoint every so many steps, besides each epoch's end."
    )
    checkpoint_minutes: float | None = Field(
        30.0, gt=0, description="And when so much time has passed; null for never."
    )
    max_steps: int | None = Field(
        None, ge=1, lt=2**63, description="Stop after this many steps of the run, with a checkpoint; null for its end."
    )
    feature_cache_gib: float | None = Field(
        None,
        gt=0,
        description="Keep the target's features of all training samples on disk, up to so many GiB; null for none.",
    )
    step_timeout_seconds: float = Field(
        900.0, ge=1, le=1e7, description="A rank without progress for so long ends the run and says where it stands."
    )

    @model_validator(mode="after")
    def _keep(self) -> Training:
        if self.keep_checkpoints == 0 or self.keep_checkpoints < -1:
            raise ValueError("keep_checkpoints must be -1 (all) or at least 1; 0 would throw the run away")
        if self.kl > 0 and self.feature_cache_gib is not None:
            raise ValueError("kl needs the target's logits, which feature_cache_gib does not keep; use one of the two")
        return self
