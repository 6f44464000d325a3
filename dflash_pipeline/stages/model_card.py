"""The README of an exported drafter: what it is for, what it was made from, what it is worth, and how to check it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import yaml

from dflash_pipeline import __version__
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import TrainedDrafter

if TYPE_CHECKING:
    from dflash_pipeline.evaluation.acceptance import AcceptanceReport
    from dflash_pipeline.model.config import DrafterConfig
    from dflash_pipeline.training.settings import LaunchConfig

_ACCEPTANCE = "\n## Acceptance\n"
"""The last section: the report comes after the card."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What a card says besides acceptance."""

    target: str
    base_model: str | None
    licence: str
    speculators: bool
    launch: LaunchConfig
    drafter: DrafterConfig
    snapshot: CorpusSnapshot
    plan: RunPlan
    trained: TrainedDrafter
    recipe: str | None
    """Fingerprint of the recipe, where one is known."""


def model_card(facts: CardFacts) -> str:
    """A card in Markdown with the hub's metadata at its head. The same facts give the same text."""
    form = "speculators'" if facts.speculators else "z-lab's DFlash"
    return (
        f"---\n{_yaml(_metadata(facts))}---\n\n"
        f"# DFlash drafter for {facts.target}\n\n"
        f"A block drafter for speculative decoding in {form} format. It uses the target's embedding and output head,\n"
        "and drafts only for the target named here.\n\n"
        f"{_table(('', ''), _rows(facts))}\n"
        f"## Settings\n\n```yaml\n{_yaml(_settings(facts))}```\n\n"
        "Prove it: `dflash verify-export DIR --target DIR`. "
        "Measure it: `dflash evaluate --draft DIR --target DIR --prompts FILE`.\n"
        f"{_ACCEPTANCE}\nNot measured yet.\n"
    )


def with_acceptance(card: str, before: AcceptanceReport | None, trained: AcceptanceReport) -> str:
    """The card with its last section saying what was measured. Called again, it replaces what it said."""
    low, high = trained.interval
    text = (
        f"Mean acceptance length {trained.mean:.3f} (95 %: {low:.3f} to {high:.3f}) on {trained.num_prompts} prompts, "
        f"{'greedy' if trained.temperature == 0 else f'at temperature {trained.temperature:g}'}; the block size is "
        f"{trained.block_size}."
    )
    if before is not None:
        text += f" Before training it was {before.mean:.3f}."
    if trained.lossless is not None:
        differing = f"{trained.num_differing} outputs differ from the target's own"
        text += " Every output equals the target's own." if trained.lossless else f" {differing}."
    sources = [(group.name, group.num_prompts, f"{group.mean:.3f}") for group in trained.by_source]
    positions = [(position, f"{kept:.3f}") for position, kept in enumerate(trained.per_position, start=1)]
    section = (
        f"{text}\n\n"
        f"{_table(('source', 'prompts', 'acceptance length'), sources)}\n"
        f"{_table(('drafted position', 'share of rounds that keep it'), positions)}"
    )
    return with_section(card, section)


def acceptance_section(card: str) -> str:
    """What a card says of acceptance."""
    return card.partition(_ACCEPTANCE)[2].removeprefix("\n")


def with_section(card: str, section: str) -> str:
    """The card with another text on acceptance."""
    return f"{card.partition(_ACCEPTANCE)[0]}{_ACCEPTANCE}\n{section}"


def _metadata(facts: CardFacts) -> dict[str, Any]:
    given = {"license": facts.licence}
    if facts.base_model is not None:
        given["base_model"] = facts.base_model
    return {
        **given,
        "library_name": "speculators" if facts.speculators else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["dflash", "speculative-decoding", "draft-model"],
    }


def _rows(facts: CardFacts) -> list[tuple[str, str]]:
    drafter, trained, plan, snapshot = facts.drafter, facts.trained, facts.plan, facts.snapshot
    answers = "the files' own" if snapshot.answers == "source" else f"by the target ({snapshot.answers})"
    done = "" if trained.steps_done == trained.total_steps else f", of which {trained.steps_done} were done"
    return [
        ("target", f"{facts.base_model or facts.target} (fingerprint {facts.launch.target})"),
        ("block size", f"{drafter.block_size} (drafts {drafter.block_size - 1} tokens a round)"),
        ("tap layers", f"{list(drafter.tap_layer_ids)} of {drafter.num_target_layers}"),
        ("mask token", str(drafter.mask_token_id)),
        ("run", trained.run),
        *([("first weights", f"those of run {trained.warm_start}")] if trained.warm_start else []),
        ("recipe", facts.launch.experiment + (f" ({facts.recipe})" if facts.recipe else "")),
        (
            "plan",
            f"{plan.fingerprint}: {plan.num_epochs} epochs, {plan.total_steps} steps{done}, "
            f"strategy {plan.spec.strategy}",
        ),
        (
            "data",
            f"snapshot {snapshot.fingerprint}: {snapshot.num_samples} samples, {snapshot.num_train_samples} of them "
            f"for training; {snapshot.num_tokens} tokens",
        ),
        ("answers", answers),
        ("thinking", snapshot.thinking),
        ("loss", f"{trained.first_loss:.3f} to {trained.last_loss:.3f}"),
        (
            "made with",
            f"dflash-pipeline {__version__}, torch {version('torch')}, transformers {version('transformers')}",
        ),
    ]


def _settings(facts: CardFacts) -> dict[str, Any]:
    """Everything that decided the weights, but for the data."""
    return {
        "drafter": _plain(asdict(facts.drafter)),
        "training": _plain(asdict(facts.launch.settings)),
        "batching": _plain(asdict(facts.plan.spec)),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """A bar in a cell would end it."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
