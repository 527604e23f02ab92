"""Records → figures, readable in print and for colour-blind people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from apportion.study.experiment import Experiment
from apportion.study.report.drawing import COLOURS, STYLE, Picture, curve
from apportion.study.report.query import (
    Records,
    asked,
    dense_points,
    forms_of,
    main_method,
    methods_of,
    processors,
    select,
    timings,
)
from apportion.study.report.unit_figures import unit_figures


def study_figures(experiment: Experiment, records: Records) -> list[Picture]:
    """Every figure that the records of an experiment can fill."""
    with matplotlib.rc_context(STYLE):
        drawn = [
            pareto(experiment, records),
            equal_pretraining(experiment, records),
            *unit_figures(experiment, records),
            speed(experiment, records),
        ]
    return [picture for picture in drawn if picture is not None]


_COSTS = {"soft": "Soft gates: cost is mean gate mass", "hard": "Hard: cost is the share kept"}


def pareto(experiment: Experiment, records: Records) -> Picture | None:
    """Accuracy against the cost that was paid: curves of the knob, points of the specialists.

    Models with gates have a panel for each form; those with one order for all budgets are cut.
    """
    shown = experiment.figure or methods_of(experiment)
    forms = {method: forms_of(records, method) for method in shown}
    gated = any("soft" in of_method for of_method in forms.values())
    if not gated and not any("cut" in of_method for of_method in forms.values()):
        return None
    titles = _COSTS if gated else {"cut": ""}
    figure = Figure(figsize=(9.2, 3.9) if gated else (8.0, 4.2), layout="constrained")
    panels = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    for axes, (form, title) in zip(panels, titles.items(), strict=True):
        for number, method in enumerate(shown):
            points = select(records, kind="point", method=method, form=form)
            if method == "dense" and gated:
                points = select(records, kind="point", method=method)
            elif form == "hard" and not points:
                # Specialists that were cut before they were trained know no other form.
                points = select(records, kind="point", method=method, form="cut")
            if points:
                one_budget = any(stage.only for stage in experiment.stages_of(method))
                swept = bool(select(records, kind="monotone", method=method))
                curve(axes, points, method, number, line=swept or not (gated or one_budget))
            elif "baseline" in forms[method]:
                _draw_level(axes, select(records, kind="point", method=method), method)
        axes.set(title=title, xlabel="cost paid", xlim=(0, 1.03))
    panels[0].set_ylabel("test accuracy")
    if gated:
        caption = "What the knob keeps at each cost."
        below = _frame_what_was_trained(experiment, records, panels[0], shown)
    else:
        caption = "Points are models of one budget, lines are one set of weights."
        panels[0].set_xlabel("cost paid: share of the layers' multiply-accumulates")
        below = _frame_near_dense(records, panels[0], shown)
    handles: dict[str, Any] = {}
    for axes in panels:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    seeds = len(experiment.seeds)
    spread = f" Means over {seeds} seeds, bars are sample standard deviations." if seeds > 1 else ""
    return Picture("pareto", "Accuracy against cost", f"{caption}{spread}{below}", figure)


def _draw_level(axes: Axes, points: Records, label: str) -> None:
    level = statistics.mean(p["accuracy"] for p in points)
    axes.axhline(level, color="#555555", linestyle="--", linewidth=1, label=label)


def _frame_near_dense(records: Records, axes: Axes, shown: Sequence[str]) -> str:
    """Draws the dense model's level, and leaves out, and names, what lies far below it."""
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    dense = dense_points(records)
    if not dense:
        return ""
    _draw_level(axes, dense, "dense")
    low = max(axes.get_ylim()[0], statistics.mean(p["accuracy"] for p in dense) - 0.12)
    axes.set_ylim(bottom=low)
    hidden = []
    for method in shown:
        points = select(records, kind="point", method=method, form="cut")
        for budget in sorted({p["budget"] for p in points}):
            if statistics.mean(p["accuracy"] for p in points if p["budget"] == budget) < low:
                hidden.append(f"{method} {asked(budget)}")
    return f" Below the frame: {', '.join(hidden)}." if hidden else ""


def _frame_what_was_trained(
    experiment: Experiment, records: Records, axes: Axes, shown: Sequence[str]
) -> str:
    """Fits the axis to what was trained, and says which points of other methods lie below it."""
    trained = {s.method for s in experiment.stages if s.recipe} & set(shown)
    means: dict[tuple[str, str, float], float] = {}
    for p in select(records, kind="point"):
        if p["method"] in shown and p["form"] != "cut":
            where = {k: p[k] for k in ("method", "form", "budget")}
            of_point = select(records, kind="point", **where)
            means[p["method"], p["form"], p["budget"]] = statistics.mean(
                q["accuracy"] for q in of_point
            )
    of_trained = [mean for (method, _, _), mean in means.items() if method in trained]
    room = max(max(of_trained) - min(of_trained), 0.02)
    low, high = min(of_trained) - 0.4 * room, max(of_trained) + 0.4 * room
    axes.set_ylim(low, min(high, 1.03))  # a spread may reach above 100 %, accuracy does not
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if room > 0.1 else 1))
    outside = [
        f"{method} at {budget:g} ({100 * mean:.1f} %)"
        for (method, _, budget), mean in means.items()
        if mean < low
    ]
    return f" Below the frame: {', '.join(outside)}." if outside else ""


def equal_pretraining(experiment: Experiment, records: Records) -> Picture | None:
    """One budgeted checkpoint against static specialists from the same dense warm start."""
    if not select(records, kind="point", method="static") or not experiment.budgets:
        return None
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(("budgeted", "static")):
        points = [
            p
            for p in select(records, kind="point", method=method, form="soft")
            if p["budget"] in experiment.budgets
        ]
        models = len({p["stage"] for p in points if p["seed"] == experiment.seeds[0]})
        label = f"{method}: {models} model{'s' * (models > 1)}"
        curve(axes, points, label, number, line=method == "budgeted", annotate=True)
    axes.set(xlabel="cost paid (mean gate mass)", ylabel="test accuracy")
    axes.set_xlim(0, None)
    low, high = axes.dataLim.y0, axes.dataLim.y1
    room = max(high - low, 0.005)
    axes.set_ylim(low - 0.15 * room, high + 0.2 * room)  # for the labels
    axes.set_yticks([tick for tick in axes.get_yticks() if low - 0.15 * room <= tick <= 1.0])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=2))
    axes.legend(frameon=False, loc="lower right")
    return Picture(
        "equal-pretraining",
        "One budgeted checkpoint against a specialist a budget",
        "Both start from the same dense checkpoints; labels are the budgets asked for.",
        figure,
    )


def speed(experiment: Experiment, records: Records) -> Picture | None:
    """Measured speed-up of cut models beside what their multiply-accumulates let expect."""
    method = main_method(experiment)
    found = timings(records, method=method, form="cut")
    if not found:
        return None
    budgets = sorted({r["budget"] for r in found})
    figure = Figure(figsize=(5.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for place, budget in enumerate(budgets):
        of_budget = timings(records, method=method, form="cut", budget=budget)
        measured = statistics.mean(r["speedup"] for r in of_budget)
        by_macs = statistics.mean(r["bound"] for r in of_budget)
        low = measured - min(r["low"] for r in of_budget)
        high = max(r["high"] for r in of_budget) - measured
        axes.bar(place, measured, width=0.55, color=COLOURS[0], yerr=[[low], [high]], capsize=4)
        axes.hlines(by_macs, place - 0.36, place + 0.36, color=COLOURS[1], linewidth=2)
        axes.text(place, 0.06, f"{measured:.2f}x", ha="center", color="white", fontsize=9)
    axes.hlines([], 0, 0, color=COLOURS[1], linewidth=2, label="by MACs, an estimate")
    axes.set_xticks(range(len(budgets)), [asked(b) for b in budgets])
    axes.axhline(1.0, color="#666666", linewidth=0.8, linestyle=":")
    axes.set(xlabel="budget", ylabel="speed-up over the uncut model")
    axes.legend(frameon=False, loc="upper right")
    axes.grid(axis="x", visible=False)
    return Picture(
        "speed",
        "Measured speed",
        f"Measured speed of the cut models, {processors(found)}; bars show the widest interval of "
        "the seeds.",
        figure,
    )
