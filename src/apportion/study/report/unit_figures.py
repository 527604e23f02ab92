"""Records → figures of units: how far gates are open, and what each budget buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from apportion.method.units import KINDS
from apportion.study.experiment import Experiment
from apportion.study.report.drawing import COLOURS, PAGE, Picture
from apportion.study.report.query import Records, asked, forms_of, main_method, select

_CALLED = {"heads": "heads", "feedforward": "feed-forward blocks"}


def unit_figures(experiment: Experiment, records: Records) -> list[Picture]:
    """The gates of the one checkpoint, if it has soft ones, and the units that budgets buy."""
    method = main_method(experiment)
    found = select(records, kind="gates", method=method)
    if not found:
        return []
    # Records come in the order in which runs ended; people look for the first seed.
    first = next((r for r in found if r["seed"] == experiment.seeds[0]), found[0])
    of_run = sorted((r for r in found if r["stage"] == first["stage"]), key=lambda r: r["budget"])
    heads_alone = all(set(kept) == {"heads"} for kept in first["kept"].values())
    if not heads_alone:
        return [allocation_bars(of_run)]
    gated = "soft" in forms_of(records, method)
    return [*([gate_map(of_run)] if gated else []), allocation_map(of_run)]


def gate_map(of_run: Records) -> Picture:
    """Gates by layer and head at each budget, for one seed."""
    figure, panels = _panels(of_run)
    image = None
    for axes, record in zip(panels, of_run, strict=True):
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
    caption = f"How far each head is open at each budget ({_whose(of_run[0])})."
    return Picture("gates", "Gates by layer and head", caption, figure)


def allocation_map(of_run: Records) -> Picture:
    """The heads that each budget keeps, for one seed."""
    figure, panels = _panels(of_run)
    for axes, record in zip(panels, of_run, strict=True):
        rows = _by_layer(record)
        kept = [record["kept"][f"layer {layer}"]["heads"] for layer in range(len(rows))]
        shown = [[1.0 if h in kept[n] else 0.0 for h in range(len(r))] for n, r in enumerate(rows)]
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=1.35, aspect="equal")
        _label_grid(axes, rows, f"B = {asked(record['budget'])}\n{sum(map(len, kept))} heads")
    caption = f"The heads that stay at each budget ({_whose(of_run[0])})."
    return Picture("allocation", "What each budget buys", caption, figure)


def allocation_bars(of_run: Records) -> Picture:
    """The share of each layer's units that a budget keeps, one panel per kind, for one seed."""
    first, whole = of_run[0], of_run[-1]["kept"]
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
        f"The share of each layer's units that stay ({first['method']}, data seed "
        f"{first['data_seed']}, seed {first['seed']}).",
        figure,
    )


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
