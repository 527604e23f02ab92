"""Answers to each row → tables of how far methods are from the dense model and from specialists."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from apportion.study.answers import dense_of
from apportion.study.experiment import Experiment
from apportion.study.report.paired import HOW_PAIRED, Difference, Kept, Paired, pair
from apportion.study.report.query import (
    Records,
    asked,
    main_method,
    methods_of,
    percent,
    points_at,
    select,
)
from apportion.study.report.table import Table

_SURE = 0.05
_HOW_TESTED = (
    f"McNemar: in how many seeds the exact test has p < {_SURE}, by Holm for the several budgets."
)


def dense_table(experiment: Experiment, records: Records, *, answers: Kept) -> Table:
    """Each method at each budget beside the dense model of its seed."""
    rows: list[dict[str, str]] = []
    for method in methods_of(experiment) if answers else ():
        dense = _dense_points(experiment, records, method)
        at = _points_by_budget(experiment, records, method)
        found = pair(list(at.values()), [dense] * len(at), answers=answers)
        if found is None:
            continue
        tested = found.p_values()
        for n, (budget, points) in enumerate(at.items()):
            rows.append(
                {
                    "method": method,
                    "budget": asked(budget),
                    "accuracy": percent(points),
                    **_compared(found.difference(n), tested[n]),
                    "same class as dense, %": _mean(points, "agreement", 100, 2),
                    "loss": _mean(points, "loss", 1, 3),
                    "calibration error, %": _mean(points, "ece", 100, 2),
                }
            )
    title = "Every method beside the dense model, row by row"
    return Table.of_rows("paired", title, rows=rows, note=f"{HOW_PAIRED} {_HOW_TESTED}")


def specialist_table(experiment: Experiment, records: Records, *, answers: Kept) -> Table:
    """The one checkpoint beside models of one budget: at each, and on average over all of them."""
    main = main_method(experiment)
    one_budget = [
        method
        for method in methods_of(experiment)
        if method != main and any(stage.only for stage in experiment.stages_of(method))
    ]
    rows: list[dict[str, str]] = []
    for method in one_budget if answers and main else ():
        theirs = _points_by_budget(experiment, records, method)
        mine = _points_by_budget(experiment, records, main or "")
        both = [budget for budget in theirs if budget in mine]
        found = pair([mine[b] for b in both], [theirs[b] for b in both], answers=answers)
        if found is not None:
            rows += _rows_beside(f"{main} - {method}", found, both)
    title = "One checkpoint beside models of one budget, row by row"
    note = f"{HOW_PAIRED} {_HOW_TESTED}"
    return Table.of_rows("paired-specialists", title, rows=rows, note=note)


def _rows_beside(name: str, found: Paired, budgets: Sequence[float]) -> list[dict[str, str]]:
    tested = found.p_values()
    rows = [
        {"difference of": name, "budget": asked(budget)} | _compared(found.difference(n), tested[n])
        for n, budget in enumerate(budgets)
    ]
    mean = {"difference of": name, "budget": f"mean over {len(budgets)}"}
    return [*rows, mean | _compared(found.difference(), ())]


def _compared(difference: Difference, p_values: Sequence[float]) -> dict[str, str]:
    sure = sum(p < _SURE for p in p_values)
    return {
        "points": f"{difference.mean:+.2f}" + f" ({difference.seeds})" * bool(difference.seeds),
        "95 % interval": difference.interval,
        "in words": difference.word,
        "McNemar": f"{sure} of {len(p_values)}" if len(p_values) else "–",
    }


def _points_by_budget(
    experiment: Experiment, records: Records, method: str
) -> dict[float, Records]:
    """A method's points at the budgets of the tables: of its cut models, or as it is otherwise."""
    forms = {p["form"] for p in select(records, kind="point", method=method)}
    form = "baseline" if forms == {"baseline"} else "cut"
    found = {
        budget: points_at(records, method, form, budget)
        for budget in sorted({*experiment.budgets, 1.0})
    }
    return {budget: points for budget, points in found.items() if points}


def _dense_points(experiment: Experiment, records: Records, method: str) -> Records:
    """The points of the models that a method comes from, or else of the method that is `dense`."""
    sources = {dense.key for s in experiment.stages_of(method) if (dense := dense_of(s))}
    found = select(records, kind="point", form="dense")
    return [p for p in found if p["stage"] in sources] or [
        p for p in found if p["method"] == "dense"
    ]


def _mean(points: Records, name: str, scale: float, digits: int) -> str:
    values = [scale * point[name] for point in points if name in point]
    return f"{statistics.mean(values):.{digits}f}" if values else "–"
