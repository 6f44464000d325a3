"""Loss spikes by length bucket: median and MAD in the log domain over clipped history. A pure function over losses.

    u = ln(max(loss, 1e-8));  m, s = median and scaled MAD of the bucket's last values;  z = (u - m) / s
    spike when the loss is not finite, or z > 7 and exp(u - m) > 1.25

Buckets differ in loss, so one baseline for all is blind; clipping keeps a spike from hiding the next; the log makes
noise, which is multiplicative, symmetric. Source of the constants: docs/spikes.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

WINDOW = 64
WARMUP = 16
"""Values a bucket needs before its own band is used."""
MIN_SCALE = 0.015
MAX_Z = 7.0
MIN_RATIO = 1.25
EARLY_RATIO = 3.0
"""Before that: a spike is a loss above this multiple of the median of all buckets."""
SAME_EVENT_STEPS = 10
"""Flagged steps at most so far apart are one event."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeState:
    """Recent log losses of each bucket, clipped; the whole memory of the detector."""

    history: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    spike: bool
    expected_loss: float
    """Middle of the band; NaN before there is any history."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeEvent:
    """Flagged steps that are one disturbance to a person."""

    first_step: int
    last_step: int
    peak_step: int
    peak_loss: float


def no_history(num_buckets: int) -> SpikeState:
    return SpikeState(history=((),) * num_buckets)


def judge(state: SpikeState, *, loss: float, bucket: int) -> tuple[Verdict, SpikeState]:
    """Whether `loss` is a spike for its bucket, and the state to judge the next one with."""
    stored = state.history[bucket]
    everything = [value for values in state.history for value in values]
    if not math.isfinite(loss):
        middle = math.exp(_median(stored or everything)) if everything else math.nan
        return Verdict(spike=True, expected_loss=middle), state
    value = math.log(max(loss, 1e-8))
    if len(stored) < WARMUP:
        middle = _median(everything) if everything else math.nan
        spike = bool(everything) and value - middle > math.log(EARLY_RATIO)
        kept = value  # A band is not known yet; the median bears a few outliers.
    else:
        middle = _median(stored)
        scale = max(1.4826 * _median([abs(v - middle) for v in stored]), MIN_SCALE)
        spike = (value - middle) / scale > MAX_Z and math.exp(value - middle) > MIN_RATIO
        kept = min(value, middle + MAX_Z * scale)
    history = list(state.history)
    history[bucket] = (*stored, kept)[-WINDOW:]
    return Verdict(spike=spike, expected_loss=math.exp(middle)), replace(state, history=tuple(history))


def group_events(flagged: Iterable[tuple[int, float]]) -> list[SpikeEvent]:
    """Flagged steps (step, loss), ascending, as events: steps at most `SAME_EVENT_STEPS` apart belong together.

    A loss that is not finite is a peak above every number.
    """
    groups: list[list[tuple[int, float]]] = []
    for step, loss in flagged:
        if groups and step - groups[-1][-1][0] <= SAME_EVENT_STEPS:
            groups[-1].append((step, loss))
        else:
            groups.append([(step, loss)])
    events = []
    for group in groups:
        peak_step, peak_loss = max(group, key=lambda flag: (not math.isfinite(flag[1]), flag[1]))
        events.append(
            SpikeEvent(first_step=group[0][0], last_step=group[-1][0], peak_step=peak_step, peak_loss=peak_loss)
        )
    return events


def _median(values: tuple[float, ...] | list[float]) -> float:
    return float(np.median(values))
