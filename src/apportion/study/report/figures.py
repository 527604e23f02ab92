"""Records → figures, readable in print and for colour-blind people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from apportion.study.experiment import Experiment
from apportion.study.report.drawing import COLOURS, PAGE, STYLE, Picture, curve
from apportion.study.report.nested_figures import nested_allocation, nested_pareto
from apportion.study.report.nested_tables import is_nested
from apportion.study.report.query import (
    Records,
    asked,
    main_method,
    methods_of,
    processors,
    select,
    timings,
)


def study_figures(experiment: Experiment, records: Records) -> list[Picture]:
    """Every figure that the records of an experiment can fill."""
    with matplotlib.rc_context(STYLE):
        if is_nested(experiment):
            drawn = [nested_pareto(experiment, records), nested_allocation(experiment, records)]
        else:
            drawn = [
                pareto(experiment, records),
                equal_pretraining(experiment, records),
                gate_map(experiment, records),
                allocation_map(experiment, records),
            ]
        drawn.append(speed(experiment, records))
    return [picture for picture in drawn if picture is not None]


def pareto(experiment: Experiment, records: Records) -> Picture | None:
    """Accuracy against the cost that was paid: curves of the knob, points of the specialists."""
    if not select(records, kind="monotone"):
        return None
    shown = experiment.figure or methods_of(experiment)
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, form, title in zip(
        panels,
        ("soft", "hard"),
        ("Soft gates: cost is mean gate mass", "Hard: cost is the share kept"),
        strict=True,
    ):
        for number, method in enumerate(shown):
            points = select(records, kind="point", method=method, form=form)
            if method == "dense":
                points = select(records, kind="point", method=method)
            elif form == "hard" and not points:
                # Specialists that were cut before they were trained know no other form.
                points = select(records, kind="point", method=method, form="cut")
            if points:
                knob = bool(select(records, kind="monotone", method=method))
                curve(axes, points, method, number, line=knob)
            elif baseline := select(records, kind="point", method=method, form="baseline"):
                level = statistics.mean(p["accuracy"] for p in baseline)
                axes.axhline(level, color="#555555", linestyle="--", linewidth=1, label=method)
        axes.set(title=title, xlabel="cost paid", xlim=(0, 1.03))
    panels[0].set_ylabel("test accuracy")
    below = _frame_what_was_trained(experiment, records, panels[0], shown)
    handles: dict[str, Any] = {}
    for axes in panels:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    seeds = len(experiment.seeds)
    spread = f" Means over {seeds} seeds, bars are sample standard deviations." if seeds > 1 else ""
    return Picture(
        "pareto",
        "Accuracy against cost",
        f"What the knob keeps at each cost.{spread}{below}",
        figure,
    )


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
    own = [mean for (method, _, _), mean in means.items() if method in trained]
    room = max(max(own) - min(own), 0.02)
    low, high = min(own) - 0.4 * room, max(own) + 0.4 * room
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


def gate_map(experiment: Experiment, records: Records) -> Picture | None:
    """Gates by layer and head at each budget, for one seed."""
    found = _gates_of_one_seed(experiment, records)
    if not found:
        return None
    figure, panels = _panels(found)
    image = None
    for axes, record in zip(panels, found, strict=True):
        rows = _by_layer(record)
        image = axes.imshow(rows, cmap="cividis", vmin=0, vmax=1, aspect="equal")
        _label_grid(axes, rows, f"B = {asked(record['budget'])}")
        for layer, row in enumerate(rows):
            for head, z in enumerate(row):
                colour = "black" if z > 0.55 else "white"
                axes.text(
                    head, layer, _two_digits(z), ha="center", va="center", color=colour, fontsize=6
                )
    assert image is not None
    figure.colorbar(image, ax=list(panels), shrink=0.8, label="z(B)")
    caption = f"How far each head is open at each budget ({_whose(found[0])})."
    return Picture("gates", "Gates by layer and head", caption, figure)


def allocation_map(experiment: Experiment, records: Records) -> Picture | None:
    """The heads that each budget keeps, for one seed."""
    found = _gates_of_one_seed(experiment, records)
    if not found:
        return None
    figure, panels = _panels(found)
    for axes, record in zip(panels, found, strict=True):
        rows = _by_layer(record)
        kept = [record["kept"][f"layer {layer}"]["heads"] for layer in range(len(rows))]
        shown = [[1.0 if h in kept[n] else 0.0 for h in range(len(r))] for n, r in enumerate(rows)]
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=1.35, aspect="equal")
        _label_grid(axes, rows, f"B = {asked(record['budget'])}\n{sum(map(len, kept))} heads")
    caption = f"The heads that stay at each budget ({_whose(found[0])})."
    return Picture("allocation", "What each budget buys", caption, figure)


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


def _gates_of_one_seed(experiment: Experiment, records: Records) -> list[Mapping[str, Any]]:
    found = select(records, kind="gates", method=main_method(experiment))
    if not found:
        return []
    # Records come in the order in which runs ended; people look for the first seed.
    first = next((r for r in found if r["seed"] == experiment.seeds[0]), found[0])
    return sorted((r for r in found if r["stage"] == first["stage"]), key=lambda r: r["budget"])


def _by_layer(record: Mapping[str, Any]) -> list[list[float]]:
    layers = len(record["kept"])
    heads = len(record["z"]) // layers
    return [record["z"][layer * heads : (layer + 1) * heads] for layer in range(layers)]


def _panels(found: Sequence[Mapping[str, Any]]) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each record, as many in a row as a page is wide."""
    rows = _by_layer(found[0])
    width = max(1.3, 0.29 * len(rows[0]))
    across = min(len(found), max(1, int(PAGE / width)))
    down = -(-len(found) // across)
    size = (1.0 + across * width, down * (0.9 + 0.3 * len(rows)))
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(down, across, sharey=True, squeeze=False).flat)
    for spare in axes[len(found) :]:
        spare.set_visible(False)
    return figure, axes[: len(found)]


def _label_grid(axes: Axes, rows: Sequence[Sequence[float]], title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xticks(range(len(rows[0])))
    axes.set_yticks(range(len(rows)))
    axes.tick_params(length=0, labelsize=7)
    axes.set_xlabel("head", fontsize=8)
    axes.set_ylabel("layer", fontsize=8)
    axes.label_outer()
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # White lines between the cells: a grid of squares, not a field of colour.
    for x in range(1, len(rows[0])):
        axes.axvline(x - 0.5, color="white", linewidth=1)
    for y in range(1, len(rows)):
        axes.axhline(y - 0.5, color="white", linewidth=1)


def _two_digits(z: float) -> str:
    return "1" if z >= 0.995 else f"{z:.2f}"[1:]


def _whose(record: Mapping[str, Any]) -> str:
    return f"{record['method']}, seed {record['seed']}"
