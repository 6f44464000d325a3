"""Loss spikes: ours and known rules on series with planted disturbances, and whether ours keeps its targets.

    python bench/spikes.py [--seed 1] [--series 20]

Recall is per planted step (single, small, triple, NaN) or planted stretch (burst, rise, climb); the delay of a stretch
is that of the first step that is flagged in it. False alarms are per 10,000 steps that no injection has touched.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
from spike_rules import RULES, Rule
from spike_series import BASELINES, INJECTIONS, Series, series_of

from dflash_pipeline.training.spikes import judge, no_history

Cell = tuple[str, str]
"""Baseline and injection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One rule on all series of one baseline and one injection."""

    recall: float
    delay: float
    """Median, in steps; NaN where nothing was found."""
    false_alarms: int
    clean_steps: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--series", type=int, default=20)
    asked = parser.parse_args()
    cells = {
        (baseline, injection): [
            series_of(baseline, injection, seed=asked.seed * 1000 + number) for number in range(asked.series)
        ]
        for baseline in BASELINES
        for injection in INJECTIONS
    }
    scores = {name: {cell: score(rule, series) for cell, series in cells.items()} for name, rule in RULES.items()}
    _print_recall(scores)
    _print_false_alarms(scores)
    print()
    for name, figure, limit, met in targets(scores, microseconds=_microseconds()):
        print(f"{'met   ' if met else 'MISSED'}  {name}: {figure:.4g} (target {limit})")


def score(rule: Rule, series: list[Series]) -> Score:
    found, delays, alarms, clean = [], [], 0, 0
    for one in series:
        flags = rule(one.losses, one.buckets)
        found += [bool(flags[step]) for step in one.points]
        for stretch in one.stretches:
            inside = np.flatnonzero(flags[stretch.start : stretch.stop])
            found.append(inside.size > 0)
            delays += inside[:1].tolist()
        alarms += int((flags & one.clean).sum())
        clean += int(one.clean.sum())
    return Score(
        recall=float(np.mean(found)) if found else float("nan"),
        delay=median(delays) if delays else float("nan"),
        false_alarms=alarms,
        clean_steps=clean,
    )


def false_alarms(scores: Mapping[Cell, Score], baseline: str, *, injections: tuple[str, ...] = INJECTIONS) -> float:
    """Per 10,000 clean steps, over these injections."""
    chosen = [scores[baseline, injection] for injection in injections]
    return 1e4 * sum(s.false_alarms for s in chosen) / sum(s.clean_steps for s in chosen)


def targets(
    scores: Mapping[str, Mapping[Cell, Score]], *, microseconds: float
) -> Iterator[tuple[str, float, str, bool]]:
    """Name, figure, limit, and whether it is kept."""
    ours = scores["ours"]
    for baseline in BASELINES:
        recall = ours[baseline, "single"].recall
        yield f"{baseline}: recall of spikes of 1.8x and more", recall, ">= 0.98", recall >= 0.98
    for baseline in BASELINES:
        alarms = false_alarms(ours, baseline)
        yield f"{baseline}: false alarms, warn", alarms, "<= 5", alarms <= 5
    for baseline in BASELINES:
        alarms = false_alarms(scores["ours, alerts only"], baseline)
        yield f"{baseline}: false alarms, alert", alarms, "<= 2", alarms <= 2
    for baseline in BASELINES:
        delay = ours[baseline, "rise"].delay
        yield f"{baseline}: delay of an 80-step rise, steps", delay, "<= 10", delay <= 10
    for baseline in BASELINES:
        recall = ours[baseline, "NaN"].recall
        yield f"{baseline}: recall of NaN and 3x after it, same step", recall, ">= 0.98", recall >= 0.98
    yield "microseconds a step", microseconds, "< 100", microseconds < 100


def _microseconds() -> float:
    """CPU time of one step of the detector, with as many buckets as the series have."""
    series = series_of("mixed", "none", seed=0)
    steps = list(zip(series.losses.tolist(), series.buckets.tolist(), strict=True))
    state, began = no_history(int(series.buckets.max()) + 1), time.process_time()
    for loss, bucket in steps:
        _, state = judge(state, loss=loss, bucket=bucket)
    return 1e6 * (time.process_time() - began) / len(steps)


def _print_recall(scores: Mapping[str, Mapping[Cell, Score]]) -> None:
    for baseline in BASELINES:
        print(
            f"\n{baseline:20s}"
            + "".join(f"{injection:>10s}" for injection in INJECTIONS[1:])
            + f"{'rise after':>12s}{'climb after':>12s}"
        )
        for name, cells in scores.items():
            recalls = "".join(f"{cells[baseline, injection].recall:10.3f}" for injection in INJECTIONS[1:])
            delays = "".join(f"{cells[baseline, injection].delay:12.1f}" for injection in ("rise", "climb"))
            print(f"{name:20s}{recalls}{delays}")


def _print_false_alarms(scores: Mapping[str, Mapping[Cell, Score]]) -> None:
    print(f"\n{'false alarms':20s}" + "".join(f"{baseline:>10s}" for baseline in BASELINES) + f"{'after NaN':>12s}")
    for name, cells in scores.items():
        usual = tuple(i for i in INJECTIONS if i != "NaN")
        alarms = "".join(f"{false_alarms(cells, baseline, injections=usual):10.1f}" for baseline in BASELINES)
        print(f"{name:20s}{alarms}{false_alarms(cells, 'plateau', injections=('NaN',)):12.1f}")


if __name__ == "__main__":
    main()
