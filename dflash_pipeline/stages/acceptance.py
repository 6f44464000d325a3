"""How many tokens a round of drafting yields with the exported drafter, before and after training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_pipeline.contracts.conversation import Conversation, Ingestion, Message
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.results import ExportedDrafter
from dflash_pipeline.evaluation.acceptance import AcceptanceReport
from dflash_pipeline.evaluation.choice import Choice
from dflash_pipeline.evaluation.decode_rows import Decoding
from dflash_pipeline.evaluation.prompts import Prompt, read_prompts
from dflash_pipeline.evaluation.shares import Candidate, measure_in_processes
from dflash_pipeline.evaluation.speedup import expected_speedup
from dflash_pipeline.faults import fault_point
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.model.loading import stop_token_ids
from dflash_pipeline.model.target_files import target_fingerprint
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.launch_config import training_settings
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.target_renderer import target_renderer
from dflash_pipeline.stages.training_estimate import TrainingEstimate, training_estimate
from dflash_pipeline.stages.warm_start import first_weights_of
from dflash_pipeline.store.files import file_sha256
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.store.warehouse import Warehouse

ACCEPTANCE_VERSION = 2
"""Part of a report's identity: raised when the same drafter and prompts would be measured otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceComparison:
    """The same prompts with an untrained drafter, with what a warm run began with, and with the trained one."""

    run: str
    export_dir: str
    prompts: str
    """Where the prompts come from: a file, or the validation side."""
    max_new_tokens: int
    untrained: AcceptanceReport
    trained: AcceptanceReport
    cost_ratio: float | None = None
    """Time of a draft over time of a target pass for one token, as the recipe says it."""
    estimate: TrainingEstimate | None = None
    """What training expected at its end; None when the run's event log is gone."""
    begun_with: AcceptanceReport | None = None
    """Of the champion whose weights a warm run began with; None for a run from scratch, or where they are gone."""

    @property
    def before(self) -> AcceptanceReport:
        """With the weights that training began with, as far as they are known."""
        return self.begun_with or self.untrained

    @property
    def expected_speedup(self) -> float | None:
        """Of the trained drafter; None when no cost ratio is given."""
        return None if self.cost_ratio is None else expected_speedup(self.trained.mean, cost_ratio=self.cost_ratio)


def make_report(
    recipe: Recipe, storage: Storage, ingestion: Ingestion, exported: ExportedDrafter
) -> Made[AcceptanceComparison]:
    """Draft and verify on held-out prompts: exported drafter, untrained drafter, and what a warm run began with."""
    evaluation = recipe.evaluation
    prompts = report_prompts(recipe, storage, ingestion)
    export_dir = Path(exported.export_dir)
    before = Candidate(config=recipe_drafter(recipe), seed=training_settings(recipe).seed)
    untrained = _measured(recipe, storage, before, prompts)
    trained = _measured(recipe, storage, Candidate(export_dir=export_dir), prompts)
    first = first_weights_of(storage, exported.run)
    begun_with = None if first is None else _measured(recipe, storage, Candidate(export_dir=first), prompts)
    record = AcceptanceComparison(
        run=exported.run,
        export_dir=exported.export_dir,
        prompts=str(evaluation.prompts) if evaluation.prompts else "validation side",
        max_new_tokens=evaluation.max_new_tokens,
        untrained=untrained.record,
        trained=trained.record,
        cost_ratio=evaluation.cost_ratio,
        estimate=training_estimate(storage, exported.run),
        begun_with=None if begun_with is None else begun_with.record,
    )
    made = [one for one in (untrained, trained, begun_with) if one is not None]
    return Made(record=record, reused=all(one.reused for one in made))


def measured(recipe: Recipe, storage: Storage, ingestion: Ingestion, export_dir: Path) -> AcceptanceReport:
    """Acceptance of any exported drafter on the recipe's prompts, decoded once for the same files and settings."""
    return _measured(
        recipe, storage, Candidate(export_dir=export_dir), report_prompts(recipe, storage, ingestion)
    ).record


def _measured(
    recipe: Recipe, storage: Storage, candidate: Candidate, prompts: Sequence[Prompt]
) -> Made[AcceptanceReport]:
    evaluation = recipe.evaluation
    choice = Choice(temperature=evaluation.temperature, seed=evaluation.seed)
    identity = fingerprint(
        drafter=_identity(candidate),
        target=target_fingerprint(recipe.target.path),
        prompts=[(prompt.source, prompt.ids) for prompt in prompts],
        max_new_tokens=evaluation.max_new_tokens,
        choice=choice,
        version=ACCEPTANCE_VERSION,
    )
    path = storage.reports / f"acceptance-{identity}.json"
    if path.exists():
        return Made(record=load_record(path, AcceptanceReport), reused=True)
    decoding = Decoding(
        max_new_tokens=evaluation.max_new_tokens,
        stop_ids=stop_token_ids(recipe.target.path),
        batch_size=evaluation.batch_size,
        choice=choice,
    )
    report = measure_in_processes(
        candidate,
        prompts,
        decoding,
        target_dir=recipe.target.path,
        num_processes=evaluation.num_processes,
        device=recipe.training.device,
    )
    fault_point("report.before-write")
    save_record(path, report)
    fault_point("report.after-write")
    return Made(record=report, reused=False)


def _identity(candidate: Candidate) -> dict[str, object]:
    if candidate.export_dir is None:
        return {"config": candidate.config, "seed": candidate.seed}
    return {name: file_sha256(candidate.export_dir / name) for name in ("model.safetensors", "config.json")}


def report_prompts(recipe: Recipe, storage: Storage, ingestion: Ingestion) -> Sequence[Prompt]:
    renderer = target_renderer(recipe.target)
    limit = recipe.evaluation.num_prompts
    if recipe.evaluation.prompts:
        return read_prompts(
            recipe.evaluation.prompts, render=renderer.prompt, tokenizer=renderer.tokenizer, limit=limit
        )
    conversations = Warehouse(storage.warehouse).conversations(ingestion.fingerprint)
    held_out = [c for c in conversations if c.split == "validation" and c.messages][:limit]
    if not held_out:
        raise Refused(
            "no conversation is held out to measure on",
            where="evaluation.prompts",
            fix="name a file of prompts, or raise data.validation_fraction",
        )
    return [_held_out(conversation, renderer) for conversation in held_out]


def _held_out(conversation: Conversation, renderer: ChatRenderer) -> Prompt:
    text = renderer.prompt(_before_the_answer(conversation.messages), tools=conversation.tools)
    ids = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
    return Prompt(ids=np.asarray(ids, dtype=np.int64), source=Path(conversation.file).name)


def _before_the_answer(messages: Sequence[Message]) -> Sequence[Message]:
    first = next(i for i, message in enumerate(messages) if message.role == "assistant")
    return messages[:first]
