"""A target's folder, read as far as it can be: config, tokenizer, template, end tokens and the sizes of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedTokenizerBase

from dflash_pipeline.contracts.errors import Refused, refusing
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.tokenizer import load_tokenizer
from dflash_pipeline.model.loading import load_config, stop_token_ids
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.preflight.fault import Fault, noted
from dflash_pipeline.stages.preflight.weights import Weights, read_weights
from dflash_pipeline.stages.target_renderer import target_renderer


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A target's config, and what of it the checks ask for."""

    config: PreTrainedConfig
    num_layers: int
    vocab_size: int
    num_positions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What is known of a target. What could not be read is None, and `faults` say why."""

    shape: Shape | None
    weights: Weights | None
    stop_ids: frozenset[int]
    tokenizer: PreTrainedTokenizerBase | None
    renderer: ChatRenderer | None
    faults: tuple[Fault, ...]


def read_target(recipe: Recipe) -> Target:
    """Read each part apart from the others, so that one that is broken hides none."""
    path = recipe.target.path
    shape, weights, stop_ids, tokenizer, renderer = None, None, frozenset[int](), None, None
    faults: list[Fault] = []
    with noted(faults):
        shape = _shape(path)
    with noted(faults):
        weights = read_weights(path)
    with noted(faults):
        stop_ids = stop_token_ids(path)
    with noted(faults):
        renderer = target_renderer(recipe.target)
        tokenizer = renderer.tokenizer
    if renderer is None:
        with noted(faults):
            tokenizer = load_tokenizer(path)
    return Target(
        shape=shape,
        weights=weights,
        stop_ids=stop_ids,
        tokenizer=tokenizer,
        renderer=renderer,
        faults=tuple(faults),
    )


def _shape(path: Path) -> Shape:
    config, where = load_config(path), str(path / "config.json")
    fix = "give a decoder-only causal language model"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise Refused(f"a model of kind {config.model_type!r} decodes no text", where=where, fix=fix)
    with refusing("it lacks layers, vocabulary or positions", where=where, fix=fix):
        text = config.get_text_config(decoder=True)
        counts = (int(text.num_hidden_layers), int(text.vocab_size), int(text.max_position_embeddings))
    if min(counts) < 1:
        raise Refused(f"layers, vocabulary and positions are {counts}", where=where, fix=fix)
    num_layers, vocab_size, num_positions = counts
    return Shape(config=config, num_layers=num_layers, vocab_size=vocab_size, num_positions=num_positions)
