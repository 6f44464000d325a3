"""A run whose event log tells of spikes, over a snapshot of ten rows: nothing was trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.batching import sample_lengths
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.tokens import make_snapshot, open_tokens
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import plan_folder, save_epoch, seal_plan
from dflash_pipeline.store.records import save_record
from dflash_pipeline.training.event_log import EventLog
from tests.conftest import write_recipe
from tests.training.test_event_log import SPIKE, STEP

HOSTILE = "<script>alert(1)</script> `code` \x1b[31m"


def ten_rows(folder: Path) -> Path:
    """A recipe over ten rows, row-0 to row-9; the answer of row-4 is hostile to pages and terminals."""
    answers = [f"It is {n}. {HOSTILE if n == 4 else ''}" for n in range(10)]
    lines = [{"id": f"row-{n}", "question": f"What is {n}?", "answer": answer} for n, answer in enumerate(answers)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    data = {"sources": [{"path": "rows.jsonl"}], "max_rows": None, "validation_fraction": 0.0}
    return write_recipe(folder / "recipe.yaml", data=data, responses={"enabled": False})


def snapshot(recipe: Path, storage: Storage) -> CorpusSnapshot:
    loaded = load_recipe(recipe)
    ingestion = make_conversations(loaded, storage).record
    answers = make_responses(loaded, storage, ingestion).record
    return make_snapshot(loaded, storage, ingestion, answers).record


def conversations(storage: Storage, made: CorpusSnapshot) -> list[str]:
    tokens = open_tokens(storage, made)
    return [tokens.conversation_id(sample) for sample in range(tokens.num_samples)]


def spiky_run(recipe: Path, storage: Storage, *, slots_per_step: int = 1) -> list[str]:
    """Run `r1` of two epochs of ten steps, a sample each. Returns conversation ids by sample id.

    Samples 2 and 4 are in a spike of either epoch; sample 7 is in one of its own.
    """
    made = snapshot(recipe, storage)
    spec = BatchingSpec(strategy="shuffle", token_budget=192, slots_per_step=slots_per_step, boundaries=(192,), seed=0)
    manifests = [build_epoch_manifest(sample_lengths(storage, made), spec, epoch=epoch) for epoch in range(2)]
    folder = plan_folder(storage.plans, snapshot=made.fingerprint, spec=spec)
    for manifest in manifests:
        save_epoch(folder, manifest)
    plan = RunPlan(snapshot=made.fingerprint, spec=spec, epochs=tuple(m.summary() for m in manifests))
    seal_plan(folder, plan)
    log = EventLog(storage.runs / "r1" / "events.jsonl")
    for number in range(1, plan.total_steps + 1):
        log.tell(replace(STEP, global_step=number, loss=float(number)))
    log.tell(replace(SPIKE, global_step=101, epoch=0, step=0, sample_ids=(2, 4)))
    log.tell(replace(SPIKE, global_step=150, epoch=1, step=1, sample_ids=(2, 4)))
    log.tell(replace(SPIKE, global_step=190, epoch=1, step=2, sample_ids=(7,)))
    log.end("finished")
    record = RunRecord(run="r1", plan=plan.fingerprint, target="t", total_steps=plan.total_steps)
    save_record(storage.runs / "r1" / "run.json", record)
    return conversations(storage, made)
