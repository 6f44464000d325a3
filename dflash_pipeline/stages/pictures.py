"""Pictures of lengths, strategies and epochs, as `data:` addresses that a page can hold."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.forecast import StrategyForecast
from dflash_pipeline.contracts.manifest import EpochManifest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_REPETITION = 1e-6
"""Where a share of 0 is drawn on a logarithmic axis."""
MOST_POINTS = 1000


def length_histogram(statistics: LengthStatistics, boundaries: Sequence[int]) -> str:
    """Samples by length, with the boundaries drawn in."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.hist(statistics.lengths, bins=min(80, statistics.max_length), weights=statistics.counts, color="#4c78a8")
    for boundary in boundaries:
        axes.axvline(boundary, color="#e45756", linewidth=1)
    axes.set_xlabel("tokens in a sample" + (" (red: bucket boundaries)" if boundaries else ""))
    axes.set_ylabel("samples")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, float(np.max(statistics.lengths)) * 1.02)
    return _picture(figure)


def efficiency_against_diversity(rows: Sequence[StrategyForecast]) -> str:
    """Each strategy's speed over how often its pairs meet again; the chosen one is filled in."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        place = (max(row.pair_repetition, LEAST_REPETITION), row.relative_throughput)
        axes.scatter(*place, s=70, color="#e45756", facecolors="#e45756" if row.chosen else "none", zorder=2)
        # Sorted and window, bucket and static bucket lie close together: one name above its mark, one below.
        offset = (6, -13) if row.chosen or "," in row.name else (6, 5)
        axes.annotate(f"{row.name} (chosen)" if row.chosen else row.name, place, offset, textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlim(right=3)
    axes.set_ylim(0, 1.15 * max(1.0, *(row.relative_throughput for row in rows)))
    axes.set_xlabel("share of pairs that meet again in the next epoch (left: more diverse)")
    axes.set_ylabel("speed against sorted")
    axes.grid(alpha=0.3)
    return _picture(figure)


def epoch_over_steps(manifest: EpochManifest, *, num_ranks: int) -> str:
    """Mean length and spread of a step's micro-batches, and how much dearer its slowest rank is than the mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    steps, lengths = np.arange(manifest.num_steps), manifest.num_tokens / manifest.batch_sizes
    shown = np.linspace(0, steps.size - 1, min(steps.size, MOST_POINTS)).astype(int)
    above.fill_between(shown, lengths.min(axis=1)[shown], lengths.max(axis=1)[shown], color="#4c78a8", alpha=0.25)
    above.plot(shown, lengths.mean(axis=1)[shown], color="#4c78a8", linewidth=1)
    above.set_ylabel("tokens in a sample\n(mean, shortest to\nlongest micro-batch)")
    of_ranks = manifest.cost.reshape(manifest.num_steps, -1, num_ranks).sum(axis=1)
    below.plot(shown, (of_ranks.max(axis=1) / of_ranks.mean(axis=1))[shown], color="#e45756", linewidth=1)
    below.set_ylabel("slowest rank /\nmean rank")
    below.set_xlabel(f"step of epoch {manifest.epoch}")
    return _picture(figure)


def _picture(figure: Figure) -> str:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()
