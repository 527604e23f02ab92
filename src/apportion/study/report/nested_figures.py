"""Records → figures of models with one order for all budgets."""

from __future__ import annotations

import statistics

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from apportion.method.units import KINDS
from apportion.study.experiment import Experiment
from apportion.study.report.drawing import COLOURS, Picture, curve
from apportion.study.report.query import Records, asked, main_method, methods_of, select

_CALLED = {"heads": "heads", "feedforward": "feed-forward blocks"}


def nested_pareto(experiment: Experiment, records: Records) -> Picture | None:
    """Accuracy against cost: the one checkpoint, and what it is compared with."""
    shown = experiment.figure or methods_of(experiment)
    found = {m: select(records, kind="point", method=m, form="cut") for m in shown}
    dense = select(records, kind="point", form="dense")
    if not any(found.values()):
        return None
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (method, points) in enumerate(found.items()):
        if points:
            alone = any(stage.only for stage in experiment.stages_of(method))
            curve(axes, points, method, number, line=not alone)
    if dense:
        level = statistics.mean(p["accuracy"] for p in dense)
        axes.axhline(level, color="#555555", linestyle="--", linewidth=1, label="dense")
    axes.set(xlabel="cost paid: share of the layers' multiply-accumulates", xlim=(0, 1.03))
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    lowest = _lowest(axes.get_ylim()[0], dense)
    axes.set_ylim(bottom=lowest)
    figure.legend(loc="outside right center", frameon=False)
    seeds = len(experiment.seeds)
    spread = f" Means over {seeds} seeds, bars are sample standard deviations." if seeds > 1 else ""
    hidden = [
        f"{method} {asked(budget)}"
        for method, points in found.items()
        for budget in sorted({p["budget"] for p in points})
        if statistics.mean(p["accuracy"] for p in points if p["budget"] == budget) < lowest
    ]
    below = f" Below the frame: {', '.join(hidden)}." if hidden else ""
    return Picture(
        "pareto",
        "Accuracy against cost",
        f"Points are models of one budget, lines are one set of weights.{spread}{below}",
        figure,
    )


def _lowest(drawn: float, dense: Records) -> float:
    """Where an axis begins that shows differences: what lies far below is left out, and named."""
    return max(drawn, statistics.mean(p["accuracy"] for p in dense) - 0.12) if dense else drawn


def nested_allocation(experiment: Experiment, records: Records) -> Picture | None:
    """How many units of each layer a budget buys."""
    method = main_method(experiment)
    found = select(records, kind="gates", method=method)
    if not found:
        return None
    first = next((r for r in found if r["seed"] == experiment.seeds[0]), found[0])
    of_run = sorted(
        (r for r in found if r["stage"] == first["stage"]), key=lambda r: float(r["budget"])
    )
    whole = of_run[-1]["kept"]
    kinds = [kind for kind in KINDS if kind in next(iter(whole.values()))]
    figure = Figure(figsize=(10.0, 3.2), layout="constrained")
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        for number, record in enumerate(of_run):
            shares = [
                len(record["kept"][layer][kind]) / max(1, len(whole[layer][kind]))
                for layer in whole
            ]
            places = [place + 0.8 * number / len(of_run) for place in range(len(shares))]
            axes.bar(
                places,
                shares,
                width=0.8 / len(of_run),
                color=COLOURS[0],
                alpha=0.25 + 0.75 * (number + 1) / len(of_run),
                label=asked(record["budget"]),
            )
        middle = [place + 0.4 - 0.4 / len(of_run) for place in range(len(whole))]
        axes.set_xticks(middle, [str(n) for n in range(len(whole))])
        axes.set(title=_CALLED[kind], xlabel="layer", ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="x", visible=False)
    panels[0].set_ylabel("share that stays")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, title="budget")
    return Picture(
        "allocation",
        "What each budget buys",
        f"The share of each layer's units that stay ({method}, data seed {first['data_seed']}, "
        f"seed {first['seed']}).",
        figure,
    )
