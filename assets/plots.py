"""Pictures where a person would look rather than read."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import dagster as dg
import numpy as np

from dflash_pipeline.contracts.corpus import LengthStatistics


def length_histogram(statistics: LengthStatistics, boundaries: Sequence[int]) -> dg.MetadataValue:
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
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return dg.MetadataValue.md(f"![lengths](data:image/png;base64,{base64.b64encode(png.getvalue()).decode()})")
