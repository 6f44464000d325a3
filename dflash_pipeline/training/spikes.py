"""Loss spikes by length bucket: median and MAD in the log domain over clipped history. A pure function over losses.

    u = ln(max(loss, 1e-8));  m, s = median and scaled MAD of the bucket's last values;  z = (u - m) / s
    spike when the loss is not finite, or z > 7 and exp(u - m) > 1.25
    S = max(0, S + min(z, 4) - 0.75);  slow rise when S > 10

Buckets differ in loss, so one baseline for all is blind; clipping keeps a spike from hiding the next; the log makes
noise, which is multiplicative, symmetric; S, a cumulative sum, sees what no single step shows. Source of the constants:
docs/spikes.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_pipeline.contracts.events import Severity

WINDOW = 64
WARMUP = 16
"""Values a bucket needs before its own band is used."""
MIN_SCALE = 0.015
WARN = (7.0, 1.25)
"""Beyond both, z and the ratio to the band's middle, a loss is a spike."""
ALERT = (8.0, 1.35)
EARLY_RATIO = 3.0
"""Before there is a band: a spike is a loss above this multiple of the median of all buckets."""
MOST_RISE = 4.0
"""The most that one step adds to the slow rise, in z: a spike alone can't look like one."""
USUAL_RISE = 0.75
"""What every step takes from the slow rise, in z."""
SLOW_RISE = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeState:
    """Recent log losses of each bucket, clipped, and the slow rise; the whole memory of the detector."""

    history: tuple[tuple[float, ...], ...]
    slow_rise: float = 0.0
    """S above, over all buckets. Checkpoints of before it was kept go on from 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What one loss is, judged by those before it."""

    severity: Severity | None
    """Of a spike; None when the step is none."""
    slow_rise: bool
    """The losses up to this one rise little by little."""
    expected_loss: float
    """Middle of the band; NaN before there is any history."""

    @property
    def spike(self) -> bool:
        return self.severity is not None


def no_history(num_buckets: int) -> SpikeState:
    return SpikeState(history=((),) * num_buckets)


def judge(state: SpikeState, *, loss: float, bucket: int) -> tuple[Verdict, SpikeState]:
    """What `loss` is for its bucket, and the state to judge the next one with."""
    stored = state.history[bucket]
    if not math.isfinite(loss):
        return Verdict(severity="alert", slow_rise=False, expected_loss=_middle(state, stored)), state
    value = math.log(max(loss, 1e-8))
    if len(stored) < WARMUP:
        return _judge_early(state, value, bucket)
    middle = _median(stored)
    scale = max(1.4826 * _median([abs(v - middle) for v in stored]), MIN_SCALE)
    z = (value - middle) / scale
    rise = max(0.0, state.slow_rise + min(z, MOST_RISE) - USUAL_RISE)
    verdict = Verdict(severity=_severity(z, value - middle), slow_rise=rise > SLOW_RISE, expected_loss=math.exp(middle))
    kept = min(value, middle + WARN[0] * scale)
    return verdict, _with_value(state, bucket, kept, slow_rise=0.0 if verdict.slow_rise else rise)


def _judge_early(state: SpikeState, value: float, bucket: int) -> tuple[Verdict, SpikeState]:
    """Before the bucket has a band. The value is stored as it is: a median bears a few outliers."""
    expected = _middle(state, ())
    spike = value - math.log(expected) > math.log(EARLY_RATIO)  # Never, when NaN is expected.
    verdict = Verdict(severity="warn" if spike else None, slow_rise=False, expected_loss=expected)
    return verdict, _with_value(state, bucket, value, slow_rise=state.slow_rise)


def _severity(z: float, log_ratio: float) -> Severity | None:
    if z > ALERT[0] and log_ratio > math.log(ALERT[1]):
        return "alert"
    if z > WARN[0] and log_ratio > math.log(WARN[1]):
        return "warn"
    return None


def _middle(state: SpikeState, stored: Sequence[float]) -> float:
    """The median of `stored`, or of all buckets when it is empty, as a loss; NaN when they are, too."""
    known = stored or [value for values in state.history for value in values]
    return math.exp(_median(known)) if known else math.nan


def _with_value(state: SpikeState, bucket: int, value: float, *, slow_rise: float) -> SpikeState:
    history = list(state.history)
    history[bucket] = (*history[bucket], value)[-WINDOW:]
    return SpikeState(history=tuple(history), slow_rise=slow_rise)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)  # Of 64 values this takes a tenth of what NumPy's median does.
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
