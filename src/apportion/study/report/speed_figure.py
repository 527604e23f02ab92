"""Accuracy against measured speed: one model's levels as a line, other ways to run it as dots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from apportion.study.report.drawing import COLOURS, MARKERS, STYLE, Picture

_LEAST_SPAN = 6.0  # points that the axis shows at least: less would make noise look like loss
_MOST_BELOW = 12.0  # points under our best level: what lies lower is left out, and named


@dataclass(frozen=True)
class SpeedPoint:
    """One way to answer: how fast, over the dense model in torch, and how often right."""

    name: str
    speed: float
    accuracy: float  # share of the rows


def draw_speed(
    levels: Sequence[tuple[float, SpeedPoint]],
    peers: Sequence[SpeedPoint],
    *,
    caption: str,
) -> Picture:
    """The levels of one file, each with its budget, beside others."""
    points = [point for _, point in levels] + list(peers)
    lowest = max(point.accuracy for _, point in levels) - _MOST_BELOW / 100.0
    shown = [(level, p) for level, p in levels if p.accuracy >= lowest]
    hidden = [(f"{level:g}", p) for level, p in levels if p.accuracy < lowest]
    hidden += [(p.name, p) for p in peers if p.accuracy < lowest]
    with matplotlib.rc_context({**STYLE, "font.size": 11}):
        figure = Figure(figsize=(5.8, 4.2), layout="constrained")  # still read on a phone
        axes = figure.add_subplot()
        axes.plot(
            [p.speed for _, p in shown],
            [100.0 * p.accuracy for _, p in shown],
            color=COLOURS[0],
            marker="o",
            markersize=7,
            linewidth=2,
            label=levels[0][1].name,
            zorder=3,
        )
        for number, (level, p) in enumerate(shown):
            axes.annotate(
                f"{level:g}",
                (p.speed, 100.0 * p.accuracy),
                xytext=(0, -17 if number % 2 else 9),  # neighbours may be close
                textcoords="offset points",
                ha="center",
                color=COLOURS[0],
                fontweight="bold",
            )
        for number, p in enumerate((p for p in peers if p.accuracy >= lowest), start=1):
            axes.plot(
                p.speed,
                100.0 * p.accuracy,
                linestyle="none",
                color=COLOURS[number],
                marker=MARKERS[number],
                markersize=9,
                label=p.name,
                zorder=4,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        fastest = max(p.speed for p in points if p.accuracy >= lowest)
        ticks = [t for t in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500) if t <= 1.3 * fastest]
        axes.set_xticks(ticks)
        axes.margins(x=0.08, y=0.16)
        bottom, top = axes.get_ylim()
        if top - bottom < _LEAST_SPAN:
            axes.set_ylim(top + 0.5 - _LEAST_SPAN, top + 0.5)
        axes.set_xlabel("measured speed, times the dense model in PyTorch")
        axes.set_ylabel("accuracy, %")
        axes.legend(loc="lower left", fontsize=9, framealpha=0.95, edgecolor="white")
    below = ", ".join(f"{name} ({100 * p.accuracy:.1f} %)" for name, p in hidden)
    caption += f" Below the frame: {below}." if below else ""
    return Picture("speed", "Accuracy against measured speed", caption, figure)
