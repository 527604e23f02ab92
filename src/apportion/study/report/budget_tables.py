"""Records → tables of what each budget costs and keeps, by the forms that the models have."""

from __future__ import annotations

import statistics

from apportion.study.experiment import Experiment
from apportion.study.report.query import (
    BY_MACS,
    Records,
    asked,
    by_macs,
    dense_points,
    difference,
    differences,
    forms_of,
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
    speed_note,
    times,
    times_within,
    timings,
)
from apportion.study.report.table import Table


def budget_table(experiment: Experiment, records: Records) -> Table:
    """What each budget of the one checkpoint costs and keeps, and how fast it is."""
    method = main_method(experiment)
    gated = "soft" in forms_of(records, method)
    dense = dense_points(records)
    timed = timings(records, method=method, form="skip")
    fused = any("over_fused" in latency for latency in timed)
    rows = []
    for budget in sorted({*experiment.budgets, 1.0}):
        soft, hard, cut = (
            select(records, kind="point", method=method, form=form, budget=budget)
            for form in ("soft", "hard", "cut")
        )
        if not (soft if gated else cut):
            continue
        cut_speed = timings(records, method=method, form="cut", budget=budget)
        views = timings(records, method=method, form="skip", budget=budget)
        row = {"budget asked": asked(budget)}
        if gated:
            row["cost paid, soft"] = mean_sd([p["cost"] for p in soft], 3)
            row["cost paid, hard"] = mean_sd([p["cost"] for p in hard], 3)
            row["accuracy, soft"] = percent(soft)
            row["accuracy, hard"] = percent(hard)
            row["accuracy, cut model"] = percent(cut if budget < 1.0 else [])  # or nothing is cut
            row["speed, cut model"] = times_within(cut_speed)
            row["by MACs"] = by_macs(cut_speed)
        else:
            row["cost paid"] = mean_sd([p["cost"] for p in cut], 3)
            row["accuracy"] = percent(cut)
            row["against dense"] = difference(cut, dense)
            row["speed, views"] = times(views)
            row["95 % interval"] = interval(views)
            row["of medians"] = of_medians(views, records)
            if fused:
                row["views, over fused"] = over_fused(views)
            row["speed, cut model"] = times(cut_speed)
            row["by MACs"] = by_macs(cut_speed)
            row["views, share of that"] = _share(views)
        rows.append(row)
    note = f"Method {method}, test rows, {seeds_of(records, method)}"
    if gated:
        speeds = speed_note("the same model uncut", timings(records, method=method))
        note = f"{note}. {speeds}".strip()
    else:
        note += "; the difference to the dense model is taken seed by seed." + _views_note(timed)
    return Table.of_rows("budgets", "What each budget costs and keeps", rows=rows, note=note)


def _share(timed: Records) -> str:
    if not timed:
        return "–"
    return f"{100 * statistics.mean(r['speedup'] / r['bound'] for r in timed):.1f} %"


def _views_note(timed: Records) -> str:
    if not timed:
        return ""
    note = (
        f" Speed is against the dense model on {processors(timed)}, {timed[0]['threads']} "
        f"thread, {timed[0]['rows']} rows, padded, {timed[0]['repeats']} repeats: the median "
        "of paired ratios of a seed, averaged, with the widest of the seeds' 95 % intervals, "
        f"and the ratio of medians. {BY_MACS}"
    )
    if any("over_fused" in latency for latency in timed):
        note += (
            " Views have fused residual sums; over fused: against a dense model that has them too."
        )
    return note


def against_table(experiment: Experiment, records: Records) -> Table:
    """One set of weights that is cut at any budget, against models of one budget."""
    main = main_method(experiment) or ""
    found = {
        method: select(records, kind="point", method=method)
        for method in methods_of(experiment)
        if forms_of(records, method) == {"cut"}
    }
    one_budget = [m for m in found if any(stage.only for stage in experiment.stages_of(m))]
    if len(one_budget) == len(found):  # no model here has an order for all budgets
        found = {}
    rows = []
    for budget in sorted({p["budget"] for points in found.values() for p in points}):
        at = {m: [p for p in points if p["budget"] == budget] for m, points in found.items()}
        row = {"budget": asked(budget)} | {m: percent(at[m]) for m in found}
        for method in one_budget:
            row[f"{main} - {method}"] = difference(at[main], at[method]) if main in at else "–"
        rows.append(row)
    means = []
    for method in one_budget if main in found else ():
        both = {p["budget"] for p in found[method]}
        pairs = differences([p for p in found[main] if p["budget"] in both], found[method])
        if pairs:
            average = statistics.mean(pairs)
            means.append(f"{average:+.2f} points against {method}, over {len(both)} budgets")
    note = "Accuracy in percent on test rows, mean ± sample standard deviation over seeds."
    if means:
        note += f" On average {main} is " + ", ".join(means) + "; differences seed by seed."
    return Table.of_rows("against", "One checkpoint and its yardsticks", rows=rows, note=note)


def sweep_table(experiment: Experiment, records: Records) -> Table:
    """The budgets of the sweep for each method with gates, averaged over seeds."""
    shown = experiment.figure or methods_of(experiment)
    swept = {
        method: found
        for method in shown
        if "soft" in forms_of(records, method)
        and (found := select(records, kind="monotone", method=method))
    }
    points = {
        (method, form): select(records, kind="point", method=method, form=form)
        for method in swept
        for form in ("soft", "hard")
    }
    rows = []
    for budget in sorted({p["budget"] for found in points.values() for p in found}):
        row = {"budget": asked(budget)}
        for (method, form), found in points.items():
            at = [p for p in found if p["budget"] == budget]
            row[f"{method}, {form}"] = "–"
            if at:
                accuracy = statistics.mean(100 * p["accuracy"] for p in at)
                cost = statistics.mean(p["cost"] for p in at)
                row[f"{method}, {form}"] = f"{accuracy:.2f} at {cost:.3f}"
        rows.append(row)
    verdicts = [
        f"{method}: cost monotone in {sum(bool(r['monotone']) for r in found)} of {len(found)} "
        "seeds"
        for method, found in swept.items()
    ]
    note = "; ".join(verdicts) + "." * bool(verdicts)
    return Table.of_rows("sweep", "The sweep: accuracy at cost", rows=rows, note=note)
