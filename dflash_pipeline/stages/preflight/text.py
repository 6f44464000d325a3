"""Whether tokenizer and weights belong together. Whether the template can be followed is seen when it is read."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_pipeline.stages.preflight.fault import Fault
from dflash_pipeline.stages.preflight.subject import Subject


def check_target(subject: Subject) -> Iterator[Fault]:
    """What could not be read of it: config, weights, end tokens, tokenizer, chat template."""
    yield from subject.target.faults


def check_vocabulary(subject: Subject) -> Iterator[Fault]:
    """Every token has a row in the embedding table, and the table is as long as the config says."""
    target, where = subject.target, str(subject.recipe.target.path)
    if target.shape is None:
        return
    size = target.shape.vocab_size
    if target.tokenizer is not None and (highest := max(target.tokenizer.get_vocab().values(), default=0)) >= size:
        yield Fault(
            where=where,
            what=f"the tokenizer has tokens up to {highest}, and the target {size} embedding rows",
            fix="give the tokenizer that the target was trained with",
        )
    rows = None if target.weights is None else target.weights.embedding_rows
    if rows is not None and rows != size:
        yield Fault(
            where=where,
            what=f"the embedding table has {rows} rows, and config.json says vocab_size {size}",
            fix="give config and weights of one model",
        )
