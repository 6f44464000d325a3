"""Rules for loss spikes, losses and buckets to flags: known ones in our own words, and ours with parts left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dflash_pipeline.training.spikes import judge, no_history

Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Losses [S] and buckets [S], to flags [S]."""


def ema_ratio(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """Above twice an exponential mean (0.98)."""
    flags, mean = np.zeros(losses.size, dtype=bool), float(losses[0])
    for step, loss in enumerate(losses.tolist()):
        flags[step] = not loss <= 2 * mean
        mean = 0.98 * mean + 0.02 * loss if np.isfinite(loss) else mean
    return flags


def mean_deviation(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """Above mean + 6 standard deviations of the 128 values before, as OLMo's monitor: any comparison with NaN is no."""
    return losses > _six_deviations(losses)


def skip_step(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """The same limit as OLMo's optimiser uses it to skip steps: what is not within it is out."""
    return ~(losses <= _six_deviations(losses))


def first_hundred(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """At least ten times the largest of the first 100, as Megatron."""
    return ~(losses < 10 * np.nanmax(losses[:100]))


def ema_z(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """z > 2.5 of exponential mean and variance (0.97) with clipped values fed back, ZClip's rule, after 25 steps."""
    first = losses[:25]
    flags, mean, variance = np.zeros(losses.size, dtype=bool), float(first.mean()), float(first.var())
    for step, loss in enumerate(losses.tolist()[25:], start=25):
        edge = mean + 2.5 * variance**0.5
        flags[step] = not loss <= edge
        kept = edge if flags[step] else loss
        mean, variance = 0.97 * mean + 0.03 * kept, 0.97 * variance + 0.03 * (kept - mean) ** 2
    return flags


def raw_mad(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """Above median + 6 scaled MAD of the last 64 losses, as they are."""
    past = _past(losses, 64)
    middle = np.nanmedian(past, axis=1)
    scale = 1.4826 * np.nanmedian(np.abs(past - middle[:, None]), axis=1)
    return _after_warm_up(~(losses[64:] <= middle + 6 * scale), losses.size)


def ours_one_baseline(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    return ours(losses, np.zeros_like(buckets))


def ours_points(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """Without the slow rise."""
    return _judged(losses, buckets)[0] > 0


def ours_alerts(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """Point spikes of severity alert."""
    return _judged(losses, buckets)[0] > 1


def ours(losses: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    severity, rises = _judged(losses, buckets)
    return (severity > 0) | rises


RULES: dict[str, Rule] = {
    "EMA x2": ema_ratio,
    "mean + 6 sd, 128": mean_deviation,
    "skip-step rule": skip_step,
    "10 x first 100": first_hundred,
    "EMA z 2.5": ema_z,
    "raw MAD, k 6": raw_mad,
    "ours, one baseline": ours_one_baseline,
    "ours, alerts only": ours_alerts,
    "ours, no slow rise": ours_points,
    "ours": ours,
}


def _judged(losses: np.ndarray, buckets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Severity (0 none, 1 warn, 2 alert) and slow rises, each [S]."""
    state, verdicts = no_history(int(buckets.max()) + 1), []
    for loss, bucket in zip(losses.tolist(), buckets.tolist(), strict=True):
        verdict, state = judge(state, loss=loss, bucket=bucket)
        verdicts.append(verdict)
    severity = [(None, "warn", "alert").index(verdict.severity) for verdict in verdicts]
    return np.array(severity), np.array([verdict.slow_rise for verdict in verdicts])


def _six_deviations(losses: np.ndarray) -> np.ndarray:
    """[S]; infinite before there are 128 values."""
    past = _past(losses, 128)
    return np.concatenate([np.full(128, np.inf), past.mean(axis=1) + 6 * past.std(axis=1)])


def _past(losses: np.ndarray, window: int) -> np.ndarray:
    """[S - window, window]: the values before each step from `window` on."""
    return sliding_window_view(losses, window)[:-1]


def _after_warm_up(flags: np.ndarray, num_steps: int) -> np.ndarray:
    return np.concatenate([np.zeros(num_steps - flags.size, dtype=bool), flags])
