"""Which conversations a loss event is made of: what they say, where they come from, and how they fared elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.events import SpikeRecord
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.stages.run_files import RunFiles
from dflash_pipeline.stages.sample_losses import samples_losses
from dflash_pipeline.stages.tokens import TOKENIZER_FOLDER, open_tokens
from dflash_pipeline.store.conversation_places import conversation_places
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import load_planned_epoch
from dflash_pipeline.store.records import load_record
from dflash_pipeline.store.warehouse import Warehouse
from dflash_pipeline.training.spike_events import SpikeEvent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dflash_pipeline.store.tokens import TokenStore

MOST_EVENTS = 20
"""Events of a run that are looked into: those due to data, then alerts, then the first ones."""
MOST_SAMPLES = 24
"""Of one event: those at fault first, then those of its peak, then the rest."""
MOST_CHARACTERS = 4000
"""Of a sample's text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotSamples:
    """One micro-batch of a step, as it was run."""

    slot: int
    padded_length: int
    sample_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EventStep:
    """One step of an event, and all that was in it; no slots where the plan is gone."""

    told: SpikeRecord
    slots: tuple[SlotSamples, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """A sample in one epoch: with whom it shared a micro-batch, and how the step went."""

    epoch: int
    step: int
    global_step: int
    """Steps done when it ended, as records count them."""
    slot: int
    neighbours: tuple[int, ...]
    loss: float | None
    """Of the whole step; None where the run has not done it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuspectSample:
    """One sample of an event. What can no longer be looked up is None."""

    sample_id: int
    at_fault: bool
    """Another epoch has an event with it, too."""
    conversation_id: str | None
    file: str | None
    line: int | None
    num_tokens: int | None
    num_supervised: int | None
    text: str | None
    """As the model sees it, its beginning."""
    supervised_text: str | None
    loss: float | None
    """Its own, in the event's step, by the weights of a checkpoint; None unless that was asked for."""
    meetings: tuple[Meeting, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EventForensics:
    """One event with its steps and samples."""

    event: SpikeEvent
    steps: tuple[EventStep, ...]
    samples: tuple[SuspectSample, ...]
    num_left_out: int
    """Samples of the event beyond `MOST_SAMPLES`."""
    losses_of: str | None
    """The checkpoint whose weights gave the samples' losses."""


def look_into(storage: Storage, run: RunFiles, *, with_losses: bool = False) -> tuple[EventForensics, ...]:
    """A run's events, `MOST_EVENTS` of them in order, with their steps and samples.

    `with_losses` computes each sample's own loss with the newest checkpoint before the event, on the CPU: the target
    and the drafter run once a sample.
    """
    worst_first = sorted(run.events, key=lambda e: (e.cause != "data", e.severity != "alert", e.start))
    events = sorted(worst_first[:MOST_EVENTS], key=lambda event: event.start)
    if not events:
        return ()
    manifests = _manifests(run)
    found = [_event(run, event, manifests) for event in events]
    samples = _Samples.of(storage, run, {sample.sample_id for event in found for sample in event.samples})
    found = [replace(event, samples=tuple(map(samples.described, event.samples))) for event in found]
    return tuple(_with_losses(storage, run, event) if with_losses else event for event in found)


def _event(run: RunFiles, event: SpikeEvent, manifests: Sequence[EpochManifest]) -> EventForensics:
    told = [spike for spike in run.spikes if event.start <= spike.global_step <= event.end]
    steps = tuple(EventStep(told=spike, slots=_slots(manifests, spike)) for spike in told)
    chosen = _chosen(event, told)
    losses = {step.global_step: step.loss for step in run.steps}
    meetings = _meetings(manifests, chosen[:MOST_SAMPLES], losses)
    samples = tuple(
        SuspectSample(
            sample_id=sample,
            at_fault=sample in event.shared_sample_ids,
            conversation_id=None,
            file=None,
            line=None,
            num_tokens=None,
            num_supervised=None,
            text=None,
            supervised_text=None,
            loss=None,
            meetings=tuple(meetings.get(sample, ())),
        )
        for sample in chosen[:MOST_SAMPLES]
    )
    return EventForensics(
        event=event, steps=steps, samples=samples, num_left_out=max(0, len(chosen) - MOST_SAMPLES), losses_of=None
    )


def _chosen(event: SpikeEvent, told: Iterable[SpikeRecord]) -> list[int]:
    """The event's samples, those that are most likely its cause first, each once."""
    at_peak = [sample for spike in told if spike.global_step == event.peak_step for sample in spike.sample_ids]
    rest = [sample for spike in told for sample in spike.sample_ids]
    return list(dict.fromkeys([*event.shared_sample_ids, *at_peak, *rest]))


def _manifests(run: RunFiles) -> list[EpochManifest]:
    """Every epoch of the run's plan; none where the plan is gone."""
    if run.plan is None or run.plan_dir is None:
        return []
    return [load_planned_epoch(run.plan_dir, run.plan, epoch.epoch) for epoch in run.plan.epochs]


def _slots(manifests: Sequence[EpochManifest], spike: SpikeRecord) -> tuple[SlotSamples, ...]:
    if spike.epoch >= len(manifests) or spike.step >= manifests[spike.epoch].num_steps:
        return ()
    return tuple(
        SlotSamples(slot=b.slot, padded_length=b.padded_length, sample_ids=tuple(b.sample_ids.tolist()))
        for b in manifests[spike.epoch].step_batches(spike.step)
        if not b.filler
    )


def _meetings(
    manifests: Sequence[EpochManifest], samples: Sequence[int], losses: dict[int, float]
) -> dict[int, list[Meeting]]:
    """By sample, each epoch's micro-batch with it."""
    found: dict[int, list[Meeting]] = {}
    before = 0
    for manifest in manifests:
        places = np.flatnonzero(np.isin(manifest.sample_ids, samples))
        for batch in np.unique(np.searchsorted(manifest.offsets, places, side="right") - 1):
            step, slot = divmod(int(batch), manifest.slots_per_step)
            if manifest.filler[step, slot]:
                continue
            together = manifest.micro_batch(step, slot).sample_ids.tolist()
            for sample in set(together).intersection(samples):
                meeting = Meeting(
                    epoch=manifest.epoch,
                    step=step,
                    global_step=before + step + 1,
                    slot=slot,
                    neighbours=tuple(other for other in together if other != sample),
                    loss=losses.get(before + step + 1),
                )
                found.setdefault(sample, []).append(meeting)
        before += manifest.num_steps
    return found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Samples:
    """What the snapshot and the warehouse know of samples, as far as both are still there."""

    tokens: TokenStore | None
    tokenizer: PreTrainedTokenizerBase | None
    places: dict[str, tuple[str, int]]

    @classmethod
    def of(cls, storage: Storage, run: RunFiles, sample_ids: Iterable[int]) -> _Samples:
        # Imported here: it loads transformers, and most runs have no event.
        from dflash_pipeline.ingest.tokenizer import load_tokenizer

        folder = None if run.plan is None else storage.snapshots / run.plan.snapshot
        if folder is None or not (folder / "snapshot.json").exists():
            return cls(tokens=None, tokenizer=None, places={})
        snapshot = load_record(folder / "snapshot.json", CorpusSnapshot)
        tokens = open_tokens(storage, snapshot)
        names = sorted({tokens.conversation_id(sample) for sample in sample_ids})
        known = storage.warehouse.exists()
        database = Warehouse(storage.warehouse).database
        return cls(
            tokens=tokens,
            tokenizer=load_tokenizer(folder / TOKENIZER_FOLDER) if (folder / TOKENIZER_FOLDER).exists() else None,
            places=conversation_places(database, snapshot.ingestion, names) if known else {},
        )

    def described(self, sample: SuspectSample) -> SuspectSample:
        if self.tokens is None:
            return sample
        ids, mask = self.tokens.input_ids(sample.sample_id), self.tokens.supervised_mask(sample.sample_id)
        name = self.tokens.conversation_id(sample.sample_id)
        file, line = self.places.get(name, (None, None))
        return replace(
            sample,
            conversation_id=name,
            file=file,
            line=line,
            num_tokens=int(ids.size),
            num_supervised=int(mask.sum()),
            text=self._text(ids),
            supervised_text=self._text(ids[mask]),
        )

    def _text(self, ids: np.ndarray) -> str | None:
        if self.tokenizer is None:
            return None
        # A token is at least a character: more of them than characters are never shown.
        return str(self.tokenizer.decode(ids[:MOST_CHARACTERS].tolist()))[:MOST_CHARACTERS]


def _with_losses(storage: Storage, run: RunFiles, found: EventForensics) -> EventForensics:
    step_of: dict[int, SpikeRecord] = {}
    for step in found.steps:
        for sample in step.told.sample_ids:
            step_of.setdefault(sample, step.told)
    wanted = {sample.sample_id: step_of[sample.sample_id].epoch for sample in found.samples}
    losses, checkpoint = samples_losses(storage, run, wanted, before=found.event.start)
    samples = tuple(replace(sample, loss=losses[sample.sample_id]) for sample in found.samples)
    return replace(found, samples=samples, losses_of=checkpoint)
