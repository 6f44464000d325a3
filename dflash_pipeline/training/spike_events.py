"""Events: what the detector told step by step, put together to what a person would call one disturbance. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_pipeline.contracts.events import Severity, SpikeRecord
from dflash_pipeline.training.spike_data import samples_at_fault

EventKind = Literal["spike", "slow rise", "level shift"]

SAME_EVENT_STEPS = 10
"""Told steps at most so far apart are one event."""
LONGEST_SPIKE_STEPS = 16
"""An event that lasts longer is a new level, or the beginning of a divergence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeEvent:
    """Steps that are one disturbance to a person. Steps are global ones."""

    kind: EventKind
    severity: Severity
    """The worst of its steps."""
    cause: Literal["data"] | None
    """"data": in another epoch, too, there is a spike on its samples, or on more of them than by chance."""
    start: int
    end: int
    peak_step: int
    peak_loss: float
    flagged: tuple[int, ...]
    """Steps that are spikes by themselves; of a slow rise or a level shift only those whose loss is not finite."""
    epochs: tuple[int, ...]
    sample_ids: tuple[int, ...]
    """Of the flagged steps, ascending."""
    shared_sample_ids: tuple[int, ...]
    """Those for which its cause is "data"."""


def events_of(records: Iterable[SpikeRecord], *, num_samples: int | None) -> list[SpikeEvent]:
    """Events of a run or series, in order. `records` are all that were told of it, in the order of their steps.

    `num_samples` is the size of the corpus, if it is known: by it samples that come back are told from chance.
    """
    groups = _groups(records)
    at_fault = samples_at_fault([spike for group in groups for spike in _spikes(group)], num_samples)
    return [_event(group, at_fault) for group in groups]


def flagged_steps(events: Iterable[SpikeEvent]) -> list[int]:
    """Point spikes: no step that is only part of a slow rise or of a new level."""
    return [step for event in events for step in event.flagged]


def _groups(records: Iterable[SpikeRecord]) -> list[list[SpikeRecord]]:
    groups: list[list[SpikeRecord]] = []
    for record in records:
        if groups and record.global_step - groups[-1][-1].global_step <= SAME_EVENT_STEPS:
            groups[-1].append(record)
        else:
            groups.append([record])
    return groups


def _event(group: Sequence[SpikeRecord], at_fault: Mapping[int, set[int]]) -> SpikeEvent:
    spikes = _spikes(group)
    shared = {sample for record in spikes for sample in at_fault.get(record.global_step, ())}
    # A loss that is not finite is a peak above every number.
    peak = max(group, key=lambda record: (not math.isfinite(record.loss), record.loss))
    return SpikeEvent(
        kind=_kind(group),
        severity="alert" if any(record.severity == "alert" for record in group) else "warn",
        cause="data" if shared else None,
        start=group[0].global_step,
        end=group[-1].global_step,
        peak_step=peak.global_step,
        peak_loss=peak.loss,
        flagged=tuple(record.global_step for record in spikes),
        epochs=tuple(sorted({record.epoch for record in group})),
        sample_ids=tuple(sorted({sample for record in spikes for sample in record.sample_ids})),
        shared_sample_ids=tuple(sorted(shared)),
    )


def _kind(group: Sequence[SpikeRecord]) -> EventKind:
    """A rise is told first as one; a level shift is long, and most of its steps are spikes: not a few far apart."""
    if group[0].rule == "slow rise":
        return "slow rise"
    steps = group[-1].global_step - group[0].global_step + 1
    num_spikes = sum(record.rule == "point" for record in group)
    return "level shift" if steps > LONGEST_SPIKE_STEPS and 2 * num_spikes > steps else "spike"


def _spikes(group: Sequence[SpikeRecord]) -> list[SpikeRecord]:
    """Those of a group that are spikes by themselves: a loss that is not finite is no part of a rise or of a level."""
    kind = _kind(group)
    return [r for r in group if not math.isfinite(r.loss) or (kind == "spike" and r.rule == "point")]
