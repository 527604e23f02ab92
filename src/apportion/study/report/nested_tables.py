"""Records → tables of models with one order for all budgets: heads and feed-forward blocks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from apportion.serving.timing import SWITCHES
from apportion.study.experiment import Experiment
from apportion.study.report.query import (
    BY_MACS,
    Records,
    asked,
    interval,
    main_method,
    mean_sd,
    methods_of,
    of_medians,
    over_fused,
    percent,
    processors,
    seeds_of,
    select,
    times,
    timings,
)
from apportion.study.report.table import Table


def is_nested(experiment: Experiment) -> bool:
    """Whether an experiment's one checkpoint buys its units in one order."""
    method = main_method(experiment)
    return any(
        stage.nested or (stage.recipe is not None and stage.recipe.objective == "nested")
        for stage in experiment.stages_of(method or "")
    )


def nested_tables(experiment: Experiment, records: Records) -> list[Table]:
    """What such an experiment shows beside the tables of any other."""
    if not is_nested(experiment):
        return []
    return [
        against_table(experiment, records),
        switching_table(records),
        conversion_table(records),
    ]


def nested_budget_table(experiment: Experiment, records: Records) -> Table:
    """What each budget costs and keeps, and how fast it is: views of the one set of weights."""
    method = main_method(experiment)
    dense = select(records, kind="point", form="dense")
    timed = timings(records, method=method, form="skip")
    fused = any("over_fused" in r for r in timed)
    rows = []
    for budget in sorted({*experiment.budgets, 1.0}):
        points = select(records, kind="point", method=method, form="cut", budget=budget)
        if not points:
            continue
        views = timings(records, method=method, form="skip", budget=budget)
        cut = timings(records, method=method, form="cut", budget=budget)
        rows.append(
            (
                asked(budget),
                mean_sd([p["cost"] for p in points], 3),
                percent(points),
                _difference(points, dense),
                times(views),
                interval(views),
                of_medians(views, records),
                *((over_fused(views),) if fused else ()),
                times(cut),
                f"{statistics.mean(r['bound'] for r in cut):.2f}x" if cut else "–",
                _share(views),
            )
        )
    note = f"Method {method}, test rows, {seeds_of(records, method)}; the difference to the dense "
    note += "model is taken seed by seed."
    if timed:
        note += (
            f" Speed is against the dense model on {processors(timed)}, {timed[0]['threads']} "
            f"thread, {timed[0]['rows']} rows, padded, {timed[0]['repeats']} repeats: the median "
            "of paired ratios of a seed, averaged, with the widest of the seeds' 95 % intervals, "
            f"and the ratio of medians. {BY_MACS}"
        )
    if fused:
        note += (
            " Views have fused residual sums; over fused: against a dense model that has them too."
        )
    return Table(
        "budgets",
        "What each budget costs and keeps",
        (
            "budget asked",
            "cost paid",
            "accuracy",
            "against dense",
            "speed, views",
            "95 % interval",
            "of medians",
            *(("views, over fused",) if fused else ()),
            "speed, cut model",
            "by MACs",
            "views, share of that",
        ),
        tuple(rows),
        note,
    )


def against_table(experiment: Experiment, records: Records) -> Table:
    """Every method at each budget, cut; the one checkpoint against the models of one budget."""
    main = main_method(experiment) or ""
    found = {
        method: points
        for method in methods_of(experiment)
        if (points := select(records, kind="point", method=method, form="cut"))
    }
    alone = [m for m in found if any(s.only for s in experiment.stages_of(m))]
    rows = []
    for budget in sorted({p["budget"] for points in found.values() for p in points}):
        at = {m: [p for p in points if p["budget"] == budget] for m, points in found.items()}
        cells = [percent(at[m]) for m in found]
        cells += [_difference(at[main], at[m]) if main in at else "–" for m in alone]
        rows.append((asked(budget), *cells))
    means = []
    for method in alone if main in found else ():
        both = {p["budget"] for p in found[method]}
        pairs = _pairs([p for p in found[main] if p["budget"] in both], found[method])
        if pairs:
            average = statistics.mean(pairs)
            means.append(f"{average:+.2f} points against {method}, over {len(both)} budgets")
    note = "Accuracy in percent on test rows, mean ± sample standard deviation over seeds."
    if means:
        note += f" On average {main} is " + ", ".join(means) + "; differences seed by seed."
    return Table(
        "against",
        "One checkpoint and its yardsticks",
        ("budget", *found, *(f"{main} - {m}" for m in alone)),
        tuple(rows),
        note,
    )


def switching_table(records: Records) -> Table:
    """What it takes to change the budget of a model that is running."""
    rows = tuple(
        (
            r["method"],
            str(r["seed"]),
            str(len(r["budgets"])),
            f"{r['switch_us']:.2f}",
            f"{r['slowest_us']:.1f}",
            f"{r['first_ms']:.1f}",
            f"{r['extra_bytes']:,}",
            f"{r['object_bytes']:,}",
            f"{100 * (r['extra_bytes'] + r['object_bytes']) / r['whole_bytes']:.1f}",
        )
        for r in select(records, kind="switching")
    )
    return Table(
        "switching",
        "Changing the budget",
        (
            "method",
            "seed",
            "budgets",
            "switch, µs",
            "slowest, µs",
            "first time, ms",
            "bytes of weights beside the dense ones",
            "bytes of Python objects",
            "both, of the dense model, %",
        ),
        rows,
        f"A switch is the median of {SWITCHES:,} between budgets that were asked for before; the "
        "first time that a budget is asked for, its modules are made, which hold views of the "
        "weights.",
    )


def conversion_table(records: Records) -> Table:
    """How long it took to convert a model without training it."""
    found = [r for r in select(records, kind="scores") if "repair_seconds" in r]
    rows = []
    for method in dict.fromkeys(r["method"] for r in found):
        of_method = [r for r in found if r["method"] == method]
        rows.append(
            (
                method,
                str(len(of_method)),
                str(of_method[0].get("rows", "–")),
                mean_sd([r["seconds"] for r in of_method if "seconds" in r], 0),
                str(of_method[0]["repair_rows"]),
                mean_sd([r["repair_seconds"] for r in of_method], 0),
            )
        )
    return Table(
        "conversion",
        "Without training: what it took",
        ("method", "runs", "rows scored", "seconds", "rows for the repair", "seconds of it"),
        tuple(rows),
        "Seconds of the process that did it, one thread where it ran beside others.",
    )


def _pairs(ours: Records, theirs: Records) -> list[float]:
    """Differences in points between runs of the same seeds, at the same budget or to the dense."""
    found = {_cell(p): p for p in theirs}
    differences = []
    for point in ours:
        other = found.get(_cell(point)) or found.get((*_cell(point)[:2], None))
        if other is not None:
            differences.append(100 * (point["accuracy"] - other["accuracy"]))
    return differences


def _cell(point: Mapping[str, Any]) -> tuple[int, int, float | None]:
    budget = None if point["form"] == "dense" else point["budget"]
    return point["data_seed"], point["seed"], budget


def _difference(ours: Records, theirs: Records) -> str:
    pairs = _pairs(ours, theirs)
    if not pairs:
        return "–"
    spread = f" ± {statistics.stdev(pairs):.2f}" if len(pairs) > 1 else ""
    return f"{statistics.mean(pairs):+.2f}{spread}"


def _share(timed: Records) -> str:
    if not timed:
        return "–"
    return f"{100 * statistics.mean(r['speedup'] / r['bound'] for r in timed):.1f} %"
