"""The figure of a certificate: risk against speed along the path of thresholds."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from apportion.serving.guarantees.certificate import Certificate
from apportion.serving.guarantees.guarantee import binomial_bound
from apportion.study.report.drawing import COLOURS, STYLE, Picture


def draw_path(certificate: Certificate) -> Picture:
    """What each step of the path disagrees on, with its bound, and how fast it may be.

    The speed of a step is what the levels' costs let expect; of the kept one it was measured.
    """
    delta = 1.0 - certificate.confidence
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for certified, colour, label in (
            (True, COLOURS[0], "certified"),
            (False, COLOURS[7], "not certified"),
        ):
            steps = [step for step in certificate.path if step.certified is certified]
            risk = [100.0 * step.disagreements / certificate.rows for step in steps]
            bound = [
                100.0 * binomial_bound(step.disagreements, certificate.rows, delta)
                for step in steps
            ]
            axes.errorbar(
                [1.0 / step.price for step in steps],
                risk,
                yerr=[[0.0] * len(steps), [b - r for b, r in zip(bound, risk, strict=True)]],
                label=label,
                color=colour,
                marker="o",
                markersize=4,
                linewidth=0,
                elinewidth=0.7,
                capsize=2,
            )
        promised = 100.0 * certificate.disagree_at_most
        axes.axhline(promised, color=COLOURS[1], linewidth=1.0, label=f"promised: {promised:g} %")
        kept = 100.0 * certificate.disagreements / certificate.rows
        axes.plot(
            [certificate.speed],
            [kept],
            marker="*",
            markersize=11,
            linewidth=0,
            color=COLOURS[2],
            label="kept, speed as measured",
        )
        axes.set_xlabel("speed, times the whole model's")
        axes.set_ylabel("answers that differ, %")
        axes.set_ylim(bottom=0.0)
        axes.legend(fontsize=8, frameon=False)
    caption = (
        f"Answers of {certificate.rows:,} test rows that differ from the whole model's, with the "
        f"upper end of an exact {100 * certificate.confidence:g} % interval, against the speed "
        "that the levels' costs let expect."
    )
    return Picture("certificate", "Risk against speed", caption, figure)
