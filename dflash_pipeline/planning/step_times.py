"""From the step times of earlier runs to a cost model: which length makes attention as dear as all the rest, here."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from dflash_pipeline.contracts.batching import CostModel
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.forecast import TimeModel
from dflash_pipeline.planning.packing import Floats

FEWEST_STEPS = 20
"""Fewer measured steps say nothing about three constants."""
LINEAR, QUADRATIC = 0, 1
"""Columns of the features: padded tokens, and rows x squared length. The third is micro-batches."""
ROUNDS = 8
OUTLIER = 5.0
"""Steps this many times the median residual away (a checkpoint, another process) are left out of the next round."""


def fit_time_model(seconds: Floats, tokens: Floats, squares: Floats, micro_batches: Floats) -> TimeModel:
    """Fit `seconds[s] = max over ranks r of (a * tokens + b * squares + c * micro_batches)[s, r]`.

    `tokens` are padded tokens and `squares` their sums of rows x squared length, shape [steps, ranks]. The slowest rank
    of a step is not known before the fit, so it is guessed by tokens and taken from the fit before, a few times over.
    Constants are at least 0: least squares over every subset of them, the best whose values are all positive.
    """
    if seconds.size < FEWEST_STEPS:
        raise Refused(
            f"{seconds.size} measured steps", where="cost model", fix=f"run at least {FEWEST_STEPS} steps, or give it"
        )
    features = np.stack((tokens, squares, micro_batches), axis=2)
    constants = np.array([1.0, 0.0, 0.0])
    kept = np.ones(seconds.size, dtype=np.bool_)
    for _ in range(ROUNDS):
        slowest = features[np.arange(seconds.size), np.argmax(features @ constants, axis=1)]
        constants = _positive_least_squares(slowest[kept], seconds[kept])
        residuals = np.abs(slowest @ constants - seconds)
        kept = residuals <= OUTLIER * max(float(np.median(residuals)), 1e-9 * float(seconds.mean()))
    linear, quadratic, constant = constants.tolist()
    predicted = (features @ constants).max(axis=1)
    # A whole number: what is finer than a token is noise, and boundaries are then found in machine words.
    length = None if quadratic == 0 else float(max(1, round(linear / quadratic)))
    return TimeModel(
        cost=CostModel(quadratic_length=length),
        seconds_per_cost=linear,
        seconds_per_micro_batch=constant,
        relative_error=float(np.median(np.abs(predicted - seconds) / seconds)),
        num_steps=int(seconds.size),
    )


def _positive_least_squares(features: Floats, seconds: Floats) -> Floats:
    best, least = np.zeros(features.shape[1]), np.inf
    scale = features.max(axis=0)
    scale[scale == 0] = 1.0
    for count in range(1, features.shape[1] + 1):
        for chosen in combinations(range(features.shape[1]), count):
            if QUADRATIC in chosen and LINEAR not in chosen:
                continue  # No length makes attention as dear as nothing: a cost model cannot say it.
            columns = list(chosen)
            found = np.linalg.lstsq(features[:, columns] / scale[columns], seconds)[0]
            if (found <= 0).any():
                continue  # Without what is 0 the fit is as good.
            off = float(np.square(features[:, columns] / scale[columns] @ found - seconds).sum())
            if off < least:
                best, least = np.zeros(features.shape[1]), off
                best[columns] = found / scale[columns]
    return best
