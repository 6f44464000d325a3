"""The loss of a run with its spikes, as a picture that a page can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dflash_pipeline.stages.pictures import BLUE, RED, png_address
from dflash_pipeline.training.event_log import each_event

Floats = npt.NDArray[np.float64]

MOST_POINTS = 700
"""Of the curve: about one a pixel. Each stands for one step, or for several in a row."""
MOST_SPIKES = 200
"""Marked ones. More of them are no exceptions."""
LOGARITHMIC = 20.0
"""From this ratio of the largest loss to the smallest on."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossCurve:
    """The losses of a run, thinned for a picture. What is not finite is in none of the three but among the spikes."""

    steps: Floats
    """The last step of each group."""
    low: Floats
    middle: Floats
    """Median; NaN, as `low` and `high` are, for a group without a finite loss."""
    high: Floats
    spike_steps: Floats
    spike_losses: Floats
    """As they were, not finite ones too."""
    num_spikes: int
    """All of them; the worst `MOST_SPIKES` are kept."""


def run_loss_picture(run_dir: Path) -> str:
    """The last attempt of every step of the run in this folder."""
    steps: dict[int, tuple[float, bool]] = {}
    for event in each_event(run_dir / "events.jsonl"):
        if event["kind"] == "step":
            steps[event["global_step"]] = (float.fromhex(event["loss_hex"]), bool(event["spike"]))
    ordered = [steps[number] for number in sorted(steps)]
    return loss_with_spikes(thinned(sorted(steps), [loss for loss, _ in ordered], [spike for _, spike in ordered]))


def thinned(steps: Sequence[int], losses: Sequence[float], spikes: Sequence[bool]) -> LossCurve:
    """Lowest, median and highest loss of at most `MOST_POINTS` groups of neighbours, and the worst spikes."""
    at, values, told = np.array(steps, dtype=np.float64), np.array(losses, dtype=np.float64), np.array(spikes)
    finite = np.where(np.isfinite(values), values, np.nan)
    groups = np.array_split(finite, min(MOST_POINTS, values.size))
    found = np.array([_three(group[np.isfinite(group)]) for group in groups])
    ends = np.cumsum([group.size for group in groups]) - 1
    flagged = np.flatnonzero(told | ~np.isfinite(values))
    severity = np.where(np.isfinite(values[flagged]), values[flagged], np.inf)
    worst = np.sort(flagged[np.argsort(-severity, kind="stable")[:MOST_SPIKES]])
    return LossCurve(
        steps=at[ends],
        low=found[:, 0],
        middle=found[:, 1],
        high=found[:, 2],
        spike_steps=at[worst],
        spike_losses=values[worst],
        num_spikes=int(flagged.size),
    )


def loss_with_spikes(curve: LossCurve) -> str:
    """Median and range of the loss over the steps; spikes are triangles, and crosses at the top for no finite loss."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.fill_between(curve.steps, curve.low, curve.high, color=BLUE, alpha=0.3, linewidth=0)
    # A mark on each of a few points: one alone makes no line.
    axes.plot(curve.steps, curve.middle, color=BLUE, linewidth=1.3, marker="o" if curve.steps.size < 40 else None, ms=3)
    lost = ~np.isfinite(curve.spike_losses)
    axes.plot(curve.spike_steps[~lost], curve.spike_losses[~lost], "v", color=RED, markersize=7)
    axes.plot(
        curve.spike_steps[lost],
        np.full(lost.sum(), 0.96),
        "x",
        color=RED,
        markersize=7,
        transform=axes.get_xaxis_transform(),
    )
    known = np.concatenate([curve.low, curve.high, curve.spike_losses])
    known = known[np.isfinite(known)]
    if known.size and known.min() > 0 and known.max() / known.min() > LOGARITHMIC:
        axes.set_yscale("log")
    axes.set_xlabel(f"step ({_spikes_told(curve)})")
    axes.set_ylabel("loss, nats a token\n(line: median, band: range)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    return png_address(figure)


def _spikes_told(curve: LossCurve) -> str:
    if curve.num_spikes == 0:
        return "no loss spikes"
    crosses = "" if np.isfinite(curve.spike_losses).all() else ", as crosses where it is not finite"
    shown = "" if curve.num_spikes <= MOST_SPIKES else f", the worst {MOST_SPIKES} shown"
    return f"triangles: {curve.num_spikes:,} loss spikes{shown}{crosses}"


def _three(values: Floats) -> tuple[float, float, float]:
    if values.size == 0:
        return (np.nan, np.nan, np.nan)
    return (float(values.min()), float(np.median(values)), float(values.max()))
