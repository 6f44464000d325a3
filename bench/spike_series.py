"""Series of losses with known disturbances: four baselines with heavy-tailed noise, and what is planted in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

NUM_STEPS = 2000
NUM_BUCKETS = 8
BASELINES = ("plateau", "descent", "mixed", "runs")
INJECTIONS = ("none", "single", "small", "triple", "burst", "rise", "climb", "NaN")
RISE_STEPS = 80
FIRST, APART = 400, 250
"""Injections begin about so far into a series, so far from each other."""
AFTERMATH = 64
"""Steps after an injection that count neither as clean nor as part of it."""

_NOISE = {"plateau": 0.03, "descent": 0.03, "mixed": 0.05, "runs": 0.05}
"""Scale of the logarithm's noise, in units of a Student t of 5 degrees of freedom."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Series:
    """A loss a step, its length bucket, and what was planted."""

    baseline: str
    injection: str
    losses: np.ndarray
    buckets: np.ndarray
    points: tuple[int, ...]
    """Planted steps that a rule should name exactly."""
    stretches: tuple[range, ...]
    """Planted stretches of which a rule should name some step."""

    @property
    def clean(self) -> np.ndarray:
        """[NUM_STEPS] bool: steps that no injection has touched."""
        clean = np.ones(NUM_STEPS, dtype=bool)
        for stretch in (*self.stretches, *(range(p, p + 1) for p in self.points)):
            clean[stretch.start : stretch.stop + AFTERMATH] = False
        return clean


def series_of(baseline: str, injection: str, *, seed: int) -> Series:
    """The same series for the same arguments."""
    rng = np.random.default_rng([seed, BASELINES.index(baseline), INJECTIONS.index(injection)])
    level, buckets = _LEVELS[baseline](rng)
    noise = _NOISE[baseline] * rng.standard_t(5, NUM_STEPS)
    quiet = Series(
        baseline=baseline,
        injection=injection,
        losses=level * np.exp(noise),
        buckets=buckets,
        points=(),
        stretches=(),
    )
    return _PLANTED[injection](quiet, list(_places(rng)), rng) if injection != "none" else quiet


def _places(rng: np.random.Generator) -> Iterator[int]:
    for begin in range(FIRST, NUM_STEPS - APART, APART):
        yield begin + int(rng.integers(0, 60))


def _plateau(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return np.linspace(1.0, 0.93, NUM_STEPS), np.zeros(NUM_STEPS, dtype=int)


def _descent(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return 1.0 + 7.0 * np.exp(-np.arange(NUM_STEPS) / 150), np.zeros(NUM_STEPS, dtype=int)


def _mixed(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return _of_buckets(rng.integers(0, NUM_BUCKETS, NUM_STEPS))


def _runs(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    runs = [np.full(rng.integers(60, 141), rng.integers(0, NUM_BUCKETS)) for _ in range(NUM_STEPS // 60 + 1)]
    return _of_buckets(np.concatenate(runs)[:NUM_STEPS])


def _of_buckets(buckets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each bucket has its level, from 0.6 to 1.4."""
    return np.geomspace(0.6, 1.4, NUM_BUCKETS)[buckets] * np.linspace(1.0, 0.93, NUM_STEPS), buckets


def _single(series: Series, places: list[int], rng: np.random.Generator) -> Series:
    return _points(series, {place: np.exp(rng.uniform(np.log(1.8), np.log(7))) for place in places})


def _small(series: Series, places: list[int], rng: np.random.Generator) -> Series:
    return _points(series, {place: rng.uniform(1.35, 1.7) for place in places})


def _triple(series: Series, places: list[int], rng: np.random.Generator) -> Series:
    return _points(series, {p + after: factor for p in places for after, factor in ((0, 4.9), (4, 6.8), (13, 1.9))})


def _burst(series: Series, places: list[int], rng: np.random.Generator) -> Series:
    lengths = rng.integers(8, 31, len(places))
    shapes = [1 + rng.uniform(1, 4) * np.exp(-3 * np.arange(n) / n) for n in lengths]
    return _stretches(series, places, shapes)


def _rise(series: Series, places: list[int], rng: np.random.Generator) -> Series:
    """Up to 2.5 times the loss, and down again."""
    half = RISE_STEPS // 2
    return _stretches(
        series, places, [np.interp(np.arange(RISE_STEPS), (0, half, RISE_STEPS), (1, 2.5, 1))] * len(places)
    )


def _climb(series: Series, places: list[int], rng: np.random.Generator) -> Series:
    """Half as steep: up to 2.5 times the loss in all of the steps."""
    return _stretches(series, places, [np.linspace(1.0, 2.5, RISE_STEPS)] * len(places))


def _nan(series: Series, places: list[int], rng: np.random.Generator) -> Series:
    """Not a number, and ten steps later three times the loss."""
    return _points(series, {p + after: factor for p in places for after, factor in ((0, np.nan), (10, 3.0))})


def _points(series: Series, factors: dict[int, float]) -> Series:
    losses = series.losses.copy()
    for place, factor in factors.items():
        losses[place] *= factor
    return replace(series, losses=losses, points=tuple(factors))


def _stretches(series: Series, places: list[int], shapes: list[np.ndarray]) -> Series:
    losses = series.losses.copy()
    stretches = [range(place, place + len(shape)) for place, shape in zip(places, shapes, strict=True)]
    for stretch, shape in zip(stretches, shapes, strict=True):
        losses[stretch.start : stretch.stop] *= shape
    return replace(series, losses=losses, stretches=tuple(stretches))


_LEVELS: dict[str, Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]] = {
    "plateau": _plateau,
    "descent": _descent,
    "mixed": _mixed,
    "runs": _runs,
}
_PLANTED: dict[str, Callable[[Series, list[int], np.random.Generator], Series]] = {
    "single": _single,
    "small": _small,
    "triple": _triple,
    "burst": _burst,
    "rise": _rise,
    "climb": _climb,
    "NaN": _nan,
}
