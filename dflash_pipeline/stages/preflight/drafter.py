"""Whether the drafter that the recipe asks for fits the target: its shape and its taps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dflash_pipeline.contracts.errors import refusing
from dflash_pipeline.model.config import FULL, DrafterConfig, default_tap_layer_ids, drafter_config
from dflash_pipeline.model.target import check_plain_head
from dflash_pipeline.stages.preflight.fault import Fault, noted
from dflash_pipeline.stages.preflight.mask_token import check_mask_token
from dflash_pipeline.stages.preflight.subject import Subject

_PLAIN = DrafterConfig(
    hidden_size=2,
    intermediate_size=1,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    vocab_size=2**31,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=2**31,
    block_size=2,
    tap_layer_ids=(0,),
    mask_token_id=0,
    num_target_layers=2,
    layer_types=(FULL,),
    sliding_window=None,
)
"""In which nothing is wrong. A config refuses its first fault; this one, changed in one respect, is asked for each."""


def check_shape(subject: Subject) -> Iterator[Fault]:
    """Sizes that follow from the target, and those that the recipe sets beside it."""
    shape, wanted = subject.target.shape, subject.recipe.drafter
    if shape is None:
        return
    faults: list[Fault] = []
    if subject.recipe.training.kl > 0:
        with noted(faults):
            check_plain_head(shape.config, where="training.kl")
    if shape.num_layers > 1:  # Otherwise nothing can be tapped, which `check_taps` says.
        where = str(subject.recipe.target.path / "config.json")
        with (
            noted(faults),
            refusing("a drafter's sizes cannot be taken from it", where=where, fix="give another target"),
        ):
            drafter_config(
                shape.config,
                num_layers=1,
                block_size=2,
                tap_layer_ids=(0,),
                mask_token_id=0,
                intermediate_size=wanted.intermediate_size,
            )
    with noted(faults):
        replace(_PLAIN, block_size=wanted.block_size, max_position_embeddings=max(shape.num_positions, 2))
    with noted(faults):
        replace(
            _PLAIN,
            num_layers=wanted.num_layers,
            layer_types=(FULL,) * wanted.num_layers if wanted.layer_types is None else tuple(wanted.layer_types),
            sliding_window=wanted.sliding_window,
        )
    yield from faults


def check_taps(subject: Subject) -> Iterator[Fault]:
    """Ascending, none twice, all inside the target; or a rule that gives such taps."""
    shape, wanted = subject.target.shape, subject.recipe.drafter
    if shape is None:
        return
    faults: list[Fault] = []
    if wanted.tap_layer_ids is None:
        with noted(faults):
            default_tap_layer_ids(shape.num_layers, wanted.num_layers)
    else:
        taps = tuple(wanted.tap_layer_ids)
        # Their order hides their range.
        for asked in (taps, tuple(sorted(set(taps)))):
            with noted(faults):
                replace(_PLAIN, tap_layer_ids=asked, num_target_layers=shape.num_layers)
    yield from faults


def check_whole_drafter(subject: Subject) -> Iterator[Fault]:
    """What only the whole shape shows: nothing that the other checks have said in their words."""
    said = (check_shape, check_taps, check_mask_token)
    if subject.target.shape is not None and not any(list(check(subject)) for check in said):
        yield from subject.drafter_refusal
