"""All that the checks look at, gathered once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_pipeline.ingest.tokenise import Tokeniser, tokeniser
from dflash_pipeline.model.config import DrafterConfig, default_mask_token_id
from dflash_pipeline.model.zlab_json import zlab_tensor_shapes
from dflash_pipeline.recipe import Data, Recipe
from dflash_pipeline.stages.conversations import reading_rules, source_files
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.preflight.fault import Fault, noted
from dflash_pipeline.stages.preflight.machine import Machine
from dflash_pipeline.stages.preflight.sample import FILES, Effort, SourceSample, sample_source
from dflash_pipeline.stages.preflight.target import Target, read_target
from dflash_pipeline.stages.tokens import token_rule
from dflash_pipeline.store.layout import Storage

_FLOAT = 4
_ROWS = 64
_SECONDS = 3.0
_CHARACTERS = 4 * 2**20
"""Seconds and characters are for all sources together: the more there are, the less is read of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A recipe, what it names, and the machine it is to run on."""

    recipe: Recipe
    storage: Storage
    num_ranks: int
    machine: Machine
    target: Target
    drafter: DrafterConfig | None
    """None when it is refused; `drafter_refusal` says why."""
    drafter_refusal: tuple[Fault, ...]
    samples: tuple[SourceSample, ...]
    """Of the sources that are there; of none when only training is looked at."""
    source_refusals: tuple[Fault, ...]

    @property
    def target_bytes(self) -> int:
        """Of the target's weights in float32; 0 when they cannot be read."""
        return 0 if self.target.weights is None else _FLOAT * self.target.weights.num_parameters

    @property
    def target_layer_bytes(self) -> int:
        """Of the target's layers alone, in float32."""
        return 0 if self.target.weights is None else _FLOAT * self.target.weights.num_layer_parameters

    @property
    def drafter_bytes(self) -> int:
        """Of the drafter's weights in float32; 0 when it is refused."""
        shapes = {} if self.drafter is None else zlab_tensor_shapes(self.drafter)
        return _FLOAT * sum(math.prod(shape) for shape in shapes.values())


def gather(recipe: Recipe, storage: Storage, *, num_ranks: int, machine: Machine, with_data: bool) -> Subject:
    """Read the target and, with data, the first rows of every source. No weight is loaded, and nothing is written."""
    target = read_target(recipe)
    drafter, refusal = None, list[Fault]()
    with noted(refusal):
        drafter = recipe_drafter(_with_mask_token(recipe, target))
    samples, unread = _samples(recipe.data, target) if with_data else ((), ())
    return Subject(
        recipe=recipe,
        storage=storage,
        num_ranks=num_ranks,
        machine=machine,
        target=target,
        drafter=drafter,
        drafter_refusal=tuple(refusal),
        samples=samples,
        source_refusals=unread,
    )


def _with_mask_token(recipe: Recipe, target: Target) -> Recipe:
    """With the mask token that would be taken where none is set: a large tokenizer need not be read once more."""
    if recipe.drafter.mask_token_id is not None or target.tokenizer is None or target.shape is None:
        return recipe
    mask = default_mask_token_id(target.tokenizer, target.shape.vocab_size)
    return recipe.model_copy(update={"drafter": recipe.drafter.model_copy(update={"mask_token_id": mask})})


def _samples(data: Data, target: Target) -> tuple[tuple[SourceSample, ...], tuple[Fault, ...]]:
    samples: list[SourceSample] = []
    faults: list[Fault] = []
    limits, tokenise = reading_rules(data).limits, _tokeniser(data, target)
    shares = FILES * len(data.sources)
    effort = Effort(
        rows=min(_ROWS, data.max_rows or _ROWS), seconds=_SECONDS / shares, characters=_CHARACTERS // shares
    )
    for source in source_files(data):
        with noted(faults):
            samples.append(sample_source(source, limits, effort, tokenise))
    return tuple(samples), tuple(faults)


def _tokeniser(data: Data, target: Target) -> Tokeniser | None:
    if target.renderer is None:
        return None
    return tokeniser(target.renderer, token_rule(data))
