"""What figures are made of: colours and markers, a picture with its words, a curve."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apportion.study.report.query import asked

# Okabe and Ito's colours; a marker of its own tells each method apart without them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
PAGE = 11.0  # inches of panels side by side
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "svg.hashsalt": "apportion",  # the same records give the same file
}


@dataclass(frozen=True)
class Picture:
    """A figure with the sentence under it."""

    name: str
    title: str
    caption: str
    figure: Figure

    def marked(self, words: str) -> Picture:
        """The same with some words written across its foot."""
        self.figure.text(0.995, 0.005, words, ha="right", va="bottom", fontsize=7, color="#b44400")
        return replace(self, caption=f"{self.caption} ({words.capitalize()}.)")

    def svg(self) -> str:
        """The figure as a vector drawing to stand in a page."""
        with matplotlib.rc_context(STYLE), io.StringIO() as text:
            self.figure.savefig(text, format="svg", metadata={"Date": None})
            drawing = text.getvalue()
        return drawing[drawing.index("<svg") :]

    def png(self) -> bytes:
        """The figure as dots, fine enough to print."""
        with matplotlib.rc_context(STYLE), io.BytesIO() as data:
            self.figure.savefig(data, format="png", dpi=200, metadata={"Software": None})
            return data.getvalue()


def curve(
    axes: Axes,
    points: Sequence[Mapping[str, Any]],
    label: str,
    number: int,
    line: bool,
    annotate: bool = False,
) -> None:
    """Accuracy against cost, a point a budget with the spread of its seeds."""
    # Past the eighth method colours come again, and markers by another step: no pair does.
    colour, marker = COLOURS[number % 8], MARKERS[(number + 3 * (number // 8)) % 8]
    budgets = sorted({p["budget"] for p in points})
    groups = [[p for p in points if p["budget"] == b] for b in budgets]
    cost = [statistics.mean(p["cost"] for p in group) for group in groups]
    accuracy = [statistics.mean(p["accuracy"] for p in group) for group in groups]
    spread = [
        statistics.stdev(p["accuracy"] for p in group) if len(group) > 1 else 0.0
        for group in groups
    ]
    axes.errorbar(
        cost,
        accuracy,
        yerr=spread if any(spread) else None,
        label=label,
        color=colour,
        marker=marker,
        markersize=4.5,
        linewidth=1.3 if line else 0,
        elinewidth=0.7,
        capsize=2,
        alpha=0.9,
    )
    if annotate:
        for x, y, budget in zip(cost, accuracy, budgets, strict=True):
            above = 7 if number == 0 else -14
            axes.annotate(
                asked(budget),
                (x, y),
                textcoords="offset points",
                xytext=(0, above),
                ha="center",
                fontsize=8,
                color=colour,
            )
