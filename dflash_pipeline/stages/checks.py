"""What must hold before a GPU-hour is spent: the plan on disk against the samples it claims to schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dflash_pipeline.contracts.corpus import CorpusSnapshot, SampleLengths
from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.stages.batching import sample_lengths
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import load_epoch, plan_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Whether a check holds, and one sentence on what was seen."""

    holds: bool
    seen: str


def check_every_sample_once(storage: Storage, snapshot: CorpusSnapshot, plan: RunPlan) -> Finding:
    """Scheduled and dropped ids, fillers aside, are each training sample exactly once, in every epoch."""

    def look(manifest: EpochManifest, samples: SampleLengths) -> str | None:
        real = np.repeat(~manifest.filler.ravel(), np.diff(manifest.offsets))
        ids = np.sort(np.concatenate((manifest.sample_ids[real], manifest.dropped)))
        if np.array_equal(ids, np.arange(samples.num_tokens.size)):
            return None
        return f"{ids.size} scheduled and dropped ids for {samples.num_tokens.size} samples"

    return _look_at_all(storage, snapshot, plan, look, f"{snapshot.num_train_samples} samples, each once an epoch")


def check_token_budget(storage: Storage, snapshot: CorpusSnapshot, plan: RunPlan) -> Finding:
    """No micro-batch's padded tokens exceed the budget, measured with the snapshot's own lengths."""

    def look(manifest: EpochManifest, samples: SampleLengths) -> str | None:
        # Rows are padded to the longest of them; documents share one row, which holds them all.
        documents = manifest.layout == "documents"
        needed = (np.add if documents else np.maximum).reduceat(
            samples.num_tokens[manifest.sample_ids], manifest.offsets[:-1]
        )
        padded = manifest.padded_length.ravel()
        rows = 1 if documents else np.diff(manifest.offsets)
        short, over = needed > padded, rows * padded > plan.spec.token_budget
        if not (short | over).any():
            return None
        step, slot = divmod(int((short | over).argmax()), manifest.slots_per_step)
        return f"step {step} slot {slot} is padded too short or exceeds {plan.spec.token_budget} tokens"

    return _look_at_all(
        storage, snapshot, plan, look, f"every micro-batch within {plan.spec.token_budget} padded tokens"
    )


def check_totals(storage: Storage, snapshot: CorpusSnapshot, plan: RunPlan) -> Finding:
    """The plan's summaries are those of the manifests on disk, and their tokens those of the snapshot's samples."""

    def look(manifest: EpochManifest, samples: SampleLengths) -> str | None:
        summary = manifest.summary()
        if summary != plan.epochs[manifest.epoch]:
            return "its summary is not the one in the plan"
        scheduled = np.setdiff1d(np.arange(samples.num_tokens.size), manifest.dropped)
        tokens = int(samples.num_tokens[scheduled].sum())
        supervised = int(samples.num_supervised[scheduled].sum())
        if (tokens, supervised) == (summary.real_tokens, summary.supervised_tokens):
            return None
        return (
            f"{summary.real_tokens} tokens ({summary.supervised_tokens} supervised) where the samples have "
            f"{tokens} ({supervised})"
        )

    return _look_at_all(storage, snapshot, plan, look, f"{plan.total_steps} steps in {plan.num_epochs} epochs")


def _look_at_all(
    storage: Storage,
    snapshot: CorpusSnapshot,
    plan: RunPlan,
    look: Callable[[EpochManifest, SampleLengths], str | None],
    fine: str,
) -> Finding:
    folder = plan_folder(storage.plans, snapshot=snapshot.fingerprint, spec=plan.spec)
    samples = sample_lengths(storage, snapshot)
    for epoch in range(plan.num_epochs):
        try:
            fault = look(load_epoch(folder, epoch), samples)
        except DflashError as error:
            fault = str(error)
        if fault:
            return Finding(holds=False, seen=f"epoch {epoch}: {fault}")
    return Finding(holds=True, seen=fine)
