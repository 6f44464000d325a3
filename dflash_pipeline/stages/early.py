"""What the early answer is measured on, and whether it ended a run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.events import AcceptanceRecord
from dflash_pipeline.evaluation.prompts import read_prompts
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.loading import stop_token_ids
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.progress import Tell
from dflash_pipeline.stages.target_renderer import target_renderer
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.tokens import TokenStore
from dflash_pipeline.training.early import EarlySettings, EarlyWork, StopRule
from dflash_pipeline.training.event_log import last_attempt_records

LONGEST_PROMPT = 2048
"""Tokens: a longer one would take most of the time of all."""


def early_settings(recipe: Recipe) -> EarlySettings | None:
    """None where the recipe wants no early answer."""
    early = recipe.early
    if not early.enabled:
        return None
    return EarlySettings(
        every_steps=early.every_steps,
        stop=StopRule(below=early.stop_below, after_steps=early.stop_after_steps or 1, above=early.stop_above),
        end_wait_seconds=early.end_wait_seconds,
    )


def early_work(
    recipe: Recipe, storage: Storage, snapshot: CorpusSnapshot, drafter: DrafterConfig, *, tell: Tell
) -> EarlyWork | None:
    """What to measure; None where nothing can be, and `tell` hears why."""
    from dflash_pipeline.stages.dry_run.target import target_size  # A dry run asks training, which asks here.

    early = recipe.early
    if not early.enabled:
        return None
    size = target_size(recipe.target.path).num_parameters
    if early.device == "cpu" and size > early.largest_cpu_target:
        tell(
            f"no early acceptance: the target's {size / 1e9:.1f} billion parameters are too many for a CPU; "
            "early.device cuda measures on the first GPU, early.largest_cpu_target moves the limit"
        )
        return None
    prompts = tuple(islice(_prompts(recipe, storage, snapshot, limit=early.num_prompts), early.num_prompts))
    if not prompts:
        tell("no early acceptance: nothing is held out to measure on, and evaluation.prompts names no file")
        return None
    return EarlyWork(
        target_dir=str(recipe.target.path),
        drafter=drafter,
        prompts=prompts,
        max_new_tokens=early.max_new_tokens,
        stop_ids=tuple(sorted(stop_token_ids(recipe.target.path))),
        device=early.device,
        gpu_memory_gib=early.gpu_memory_gib,
        threads=early.threads,
    )


def stopped_early(run_dir: Path, settings: EarlySettings | None) -> str | None:
    """Why a run that is not finished needs no further step: its newest measurement says so by today's rule."""
    if settings is None:
        return None
    told = last_attempt_records(run_dir / "events.jsonl")
    measured = [record for record in told if isinstance(record, AcceptanceRecord)]
    return settings.stop.reason(measured[-1]) if measured else None


def _prompts(recipe: Recipe, storage: Storage, snapshot: CorpusSnapshot, *, limit: int) -> Iterator[tuple[int, ...]]:
    """Of the validation side: like the training text, so that a gap to what training expects is no matter of topic."""
    if snapshot.num_validation_samples or recipe.evaluation.prompts is None:
        yield from _held_out(TokenStore(storage.snapshots / snapshot.fingerprint, snapshot.shards), snapshot)
        return
    renderer = target_renderer(recipe.target)
    given = read_prompts(recipe.evaluation.prompts, render=renderer.prompt, tokenizer=renderer.tokenizer, limit=limit)
    yield from (tuple(prompt.ids.tolist()) for prompt in given)


def _held_out(tokens: TokenStore, snapshot: CorpusSnapshot) -> Iterator[tuple[int, ...]]:
    """Each sample up to its first supervised token, as training saw it. Documents have no such prompt."""
    for sample_id in range(snapshot.num_train_samples, snapshot.num_samples):
        spans = tokens.supervised_spans(sample_id)
        if spans and 0 < spans[0][0] <= LONGEST_PROMPT:
            yield tuple(tokens.input_ids(sample_id)[: spans[0][0]].tolist())
