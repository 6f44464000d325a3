"""Acceptance by position and rounds by length, untrained and trained."""

from __future__ import annotations

import base64
import io

import numpy as np

from dflash_pipeline.evaluation.acceptance import AcceptanceReport

_COLOURS = {"untrained": "#4c78a8", "trained": "#e45756"}


def acceptance_png(untrained: AcceptanceReport, trained: AcceptanceReport) -> bytes:
    """Two panels: the share of rounds that kept each drafted slot, and the share of rounds of each length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    by_position, by_length = figure.subplots(1, 2)
    for number, (name, report) in enumerate((("untrained", untrained), ("trained", trained))):
        lengths = np.arange(1, report.block_size + 1)
        by_position.plot(lengths[:-1], report.per_position, color=_COLOURS[name], marker="o", markersize=3, label=name)
        shares = np.asarray(report.histogram) / report.num_rounds
        by_length.bar(lengths + 0.4 * (number - 0.5), shares, width=0.4, color=_COLOURS[name], label=name)
    by_position.set_xlabel("drafted slot")
    by_position.set_ylabel("share of rounds that kept it")
    by_position.set_ylim(0, 1.02)
    by_position.grid(alpha=0.3)
    by_position.legend(fontsize=8)
    by_length.set_xlabel("acceptance length")
    by_length.set_ylabel("share of rounds")
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


def acceptance_picture(untrained: AcceptanceReport, trained: AcceptanceReport) -> str:
    """The same as a `data:` address that a page can hold."""
    return "data:image/png;base64," + base64.b64encode(acceptance_png(untrained, trained)).decode()
