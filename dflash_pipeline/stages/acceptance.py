"""How many tokens a round of drafting yields with the exported drafter, before and after training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dflash_pipeline.contracts.conversation import Ingestion, Message
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.results import ExportedDrafter
from dflash_pipeline.evaluation.acceptance import AcceptanceReport
from dflash_pipeline.evaluation.prompts import read_prompts
from dflash_pipeline.evaluation.shares import Candidate, measure_in_processes
from dflash_pipeline.faults import fault_point
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.model.loading import stop_token_ids
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.training import training_settings
from dflash_pipeline.store.files import file_sha256
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.store.warehouse import Warehouse

ACCEPTANCE_VERSION = 1
"""Part of a report's identity: raised when the same drafter and prompts would be measured otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceComparison:
    """The same prompts before and after training."""

    run: str
    export_dir: str
    prompts: str
    """Where the prompts come from: a file, or the validation side."""
    max_new_tokens: int
    untrained: AcceptanceReport
    trained: AcceptanceReport


def make_report(
    recipe: Recipe, storage: Storage, ingestion: Ingestion, exported: ExportedDrafter
) -> Made[AcceptanceComparison]:
    """Draft and verify on held-out prompts with the exported drafter, and with the weights that training began from."""
    evaluation = recipe.evaluation
    source = str(evaluation.prompts) if evaluation.prompts else "validation side"
    prompts = _prompts(recipe, storage, ingestion)
    export_dir = Path(exported.export_dir)
    identity = fingerprint(
        weights=file_sha256(export_dir / "model.safetensors"),
        config=file_sha256(export_dir / "config.json"),
        run=exported.run,
        prompts=hashlib.sha256(b"|".join(p.tobytes() for p in prompts)).hexdigest(),
        max_new_tokens=evaluation.max_new_tokens,
        version=ACCEPTANCE_VERSION,
    )
    path = storage.reports / f"acceptance-{identity}.json"
    if path.exists():
        return Made(record=load_record(path, AcceptanceComparison), reused=True)
    before = Candidate(config=recipe_drafter(recipe), seed=training_settings(recipe).seed)
    untrained, trained = measure_in_processes(
        [before, Candidate(export_dir=export_dir)],
        prompts,
        target_dir=recipe.target.path,
        max_new_tokens=evaluation.max_new_tokens,
        stop_ids=stop_token_ids(recipe.target.path),
        num_processes=evaluation.num_processes,
        device=recipe.training.device,
    )
    record = AcceptanceComparison(
        run=exported.run,
        export_dir=exported.export_dir,
        prompts=source,
        max_new_tokens=evaluation.max_new_tokens,
        untrained=untrained,
        trained=trained,
    )
    fault_point("report.before-write")
    save_record(path, record)
    fault_point("report.after-write")
    return Made(record=record, reused=False)


def _prompts(recipe: Recipe, storage: Storage, ingestion: Ingestion) -> Sequence[NDArray[np.int64]]:
    renderer = ChatRenderer(recipe.target.path, recipe.target.chat_template)
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
    texts = [renderer.prompt(_before_the_answer(c.messages), tools=c.tools) for c in held_out]
    return [np.asarray(renderer.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


def _before_the_answer(messages: Sequence[Message]) -> Sequence[Message]:
    first = next(i for i, message in enumerate(messages) if message.role == "assistant")
    return messages[:first]
