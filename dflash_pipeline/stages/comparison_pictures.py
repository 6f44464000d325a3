"""Pictures of runs side by side, as `data:` addresses that a page can hold. A run keeps its colour in all of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from dflash_pipeline.stages.comparison import ComparedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Over = Literal["cost", "steps", "tokens", "hours"]
AXES: dict[Over, str] = {
    "cost": "cost done, in token units of the plan",
    "steps": "steps",
    "tokens": "useful tokens",
    "hours": "hours of steps",
}
_COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#7f7f7f")
"""The first run's is that of what the others are held against."""


def losses(runs: Sequence[ComparedRun], over: Over) -> str:
    """Smoothed loss of every run, with its spikes marked."""
    figure, axes = _figure()
    for run, colour in zip(runs, _COLOURS, strict=False):
        x, y = getattr(run.curves, over), run.curves.loss
        _line(axes, x, y, colour, run.name)
        flagged = np.isin(run.curves.steps, [step for event in run.events for step in event.flagged])
        axes.scatter(x[flagged], y[flagged], s=22, color=colour, marker="v", zorder=3)
    axes.set_yscale("log")
    return _picture(figure, axes, over, "loss, smoothed (triangles: spikes)")


def acceptances(runs: Sequence[ComparedRun], over: Over) -> str:
    """Acceptance that training expects, and where it was measured by decoding, with its interval."""
    figure, axes = _figure()
    for run, colour in zip(runs, _COLOURS, strict=False):
        _line(axes, getattr(run.curves, over), run.curves.expected_acceptance, colour, run.name)
        for record in run.curves.measured:
            at = int(np.searchsorted(run.curves.steps, record.global_step))
            x = getattr(run.curves, over)[min(at, run.curves.steps.size - 1)]
            axes.errorbar(
                x, record.mean, [[record.mean - record.low], [record.high - record.mean]], fmt="o", color=colour
            )
    return _picture(figure, axes, over, "acceptance length\n(line: expected in training)")


def epochs(runs: Sequence[ComparedRun]) -> str:
    """Useful tokens a second and padding efficiency, epoch by epoch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for run, colour in zip(runs, _COLOURS, strict=False):
        numbers = [epoch.epoch for epoch in run.epochs]
        above.plot(numbers, [e.tokens_per_second for e in run.epochs], "o-", color=colour, label=run.name, linewidth=1)
        below.plot(numbers, [e.padding_efficiency for e in run.epochs], "o-", color=colour, linewidth=1)
    above.set_ylim(bottom=0)
    above.set_ylabel("useful tokens\na second")
    below.set_ylabel("padding\nefficiency")
    below.xaxis.get_major_locator().set_params(integer=True)
    above.grid(alpha=0.3)
    below.grid(alpha=0.3)
    above.legend(fontsize=8)
    below.set_xlabel("epoch")
    return _address(figure)


def _figure() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    return figure, figure.subplots()


def _line(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, name: str) -> None:
    axes.plot(x, y, color=colour, linewidth=1.2, label=name)


def _picture(figure: Figure, axes: Axes, over: Over, label: str) -> str:
    axes.set_xlabel(AXES[over])
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return _address(figure)


def _address(figure: Figure) -> str:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()
