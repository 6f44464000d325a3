"""Pictures of lengths, buckets, strategies and epochs, as `data:` addresses that a page can hold.

Blue and orange-red are told apart by everybody; where more has to be told apart, form does it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.forecast import StrategyForecast
from dflash_pipeline.contracts.manifest import EpochManifest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, RED = "#4c78a8", "#d1495b"
LEAST_REPETITION = 1e-6
"""Where a share of 0 is drawn on a logarithmic axis."""
MOST_COLUMNS = 120
"""Of an epoch's picture: a column stands for one step, or for several in a row."""
LENGTH_BANDS = 24


def length_histogram(statistics: LengthStatistics, boundaries: Sequence[int]) -> str:
    """Samples by length, with the boundaries drawn in."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.hist(statistics.lengths, bins=min(80, statistics.max_length), weights=statistics.counts, color=BLUE)
    for boundary in boundaries:
        axes.axvline(boundary, color=RED, linewidth=1.2, linestyle="--")
    axes.set_xlabel("tokens in a sample" + (" (dashed: bucket boundaries)" if boundaries else ""))
    axes.set_ylabel("samples")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, float(np.max(statistics.lengths)) * 1.02)
    return png_address(figure)


def efficiency_against_buckets(efficiencies: Sequence[float], *, chosen: int) -> str:
    """Padding efficiency of the best boundaries for 1, 2, … buckets; the chosen number is marked."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(efficiencies) + 1), efficiencies, "o-", color=BLUE, markersize=4, linewidth=1.2)
    reached = efficiencies[chosen - 1]
    axes.plot([chosen], [reached], "D", color=RED, markersize=9)
    # Below the curve, where it never comes back: it only rises.
    right = chosen > 0.7 * len(efficiencies) > 1
    axes.annotate(
        f"chosen: {chosen}, {reached:.3f}",
        (chosen, reached),
        (-4 if right else 8, -18),
        textcoords="offset points",
        color=RED,
        ha="right" if right else "left",
    )
    axes.set_xlabel("number of buckets")
    axes.set_ylabel("padding efficiency\n(real / padded tokens)")
    axes.set_xlim(0.5, len(efficiencies) + 0.5)
    low = min(efficiencies)
    axes.set_ylim(max(0.0, low - 0.1 * (1 - low) - 0.02), 1.01)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    return png_address(figure)


def efficiency_against_diversity(rows: Sequence[StrategyForecast]) -> str:
    """Each strategy's speed over how often its pairs meet again; the chosen one is filled in."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        place = (max(row.pair_repetition, LEAST_REPETITION), row.relative_throughput)
        axes.scatter(*place, s=70, color=RED, facecolors=RED if row.chosen else "none", zorder=2)
        # Sorted and window, bucket and static bucket lie close together: one name above its mark, one below.
        offset = (6, -13) if row.chosen or "," in row.name else (6, 5)
        axes.annotate(f"{row.name} (chosen)" if row.chosen else row.name, place, offset, textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlim(right=3)
    axes.set_ylim(0, 1.15 * max(1.0, *(row.relative_throughput for row in rows)))
    axes.set_xlabel("share of pairs that meet again in the next epoch (left: more diverse)")
    axes.set_ylabel("speed against sorted")
    axes.grid(alpha=0.3)
    return png_address(figure)


def epoch_over_steps(manifest: EpochManifest, *, num_ranks: int) -> str:
    """What lengths the steps of an epoch are made of, and how far the costs of their ranks lie apart."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    mix, columns, bands = length_mix(manifest)
    drawn = above.pcolormesh(columns, bands, mix, cmap="Blues", vmin=0, vmax=max(float(mix.max()), 1e-9))
    figure.colorbar(drawn, ax=above, label="share of the\nstep's tokens", pad=0.01)
    above.set_ylabel("tokens in a sample\n(mean of its micro-batch)")
    spread = rank_spread(manifest, num_ranks=num_ranks)
    below.stairs(spread["most"], columns, baseline=spread["least"], fill=True, color=BLUE, alpha=0.3)
    for name, colour in (("least", BLUE), ("most", RED)):
        below.stairs(spread[name], columns, color=colour, linewidth=1.2, baseline=None)
    below.axhline(1, color="#555555", linewidth=0.8, linestyle=":")
    below.set_ylabel("cost of a rank /\nmean of its step")
    many = "" if manifest.num_steps <= MOST_COLUMNS else f", {manifest.num_steps / MOST_COLUMNS:.3g} to a column"
    below.set_xlabel(f"step of epoch {manifest.epoch}{many} (below: red the dearest rank, blue the cheapest)")
    below.use_sticky_edges = False
    below.set_xlim(0, manifest.num_steps)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    return png_address(figure)


def length_mix(
    manifest: EpochManifest,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Shares of a column's tokens by band of length, `[bands, columns]`, each column adding up to 1, with the edges of
    columns and of bands. Fillers are left out."""
    real = ~manifest.filler
    steps = np.broadcast_to(np.arange(manifest.num_steps)[:, None], real.shape)[real] + 0.5
    tokens = manifest.num_tokens[real]
    lengths = tokens / manifest.batch_sizes[real]
    columns = np.linspace(0, manifest.num_steps, min(manifest.num_steps, MOST_COLUMNS) + 1)
    bands = np.linspace(0, float(lengths.max()), LENGTH_BANDS + 1)
    held, _, _ = np.histogram2d(lengths, steps, bins=(bands, columns), weights=tokens)
    return held / held.sum(axis=0), columns, bands


def rank_spread(manifest: EpochManifest, *, num_ranks: int) -> Mapping[str, npt.NDArray[np.float64]]:
    """The cheapest and the dearest rank over the mean of its step; the farthest of the steps of a column."""
    of_ranks = manifest.cost.reshape(manifest.num_steps, -1, num_ranks).sum(axis=1)
    relative = of_ranks / of_ranks.mean(axis=1, keepdims=True)
    edges = np.linspace(0, manifest.num_steps, min(manifest.num_steps, MOST_COLUMNS) + 1)
    # A step belongs to the column that its middle lies in, as in `length_mix`.
    starts = np.ceil(edges[:-1] - 0.5).astype(int)
    return {
        "least": np.minimum.reduceat(relative.min(axis=1), starts),
        "most": np.maximum.reduceat(relative.max(axis=1), starts),
    }


def png_address(figure: Figure) -> str:
    """The figure as a picture inside an address, some 20 to 60 kB."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()
