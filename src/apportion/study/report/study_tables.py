"""Records → the tables of a study: every number that people see comes from here."""

from __future__ import annotations

import statistics

from apportion.data.task import SPLITS
from apportion.study.experiment import Experiment
from apportion.study.report.accounting import accounting_table, time_table
from apportion.study.report.claim_tables import goal_table
from apportion.study.report.gate_tables import gate_tables
from apportion.study.report.nested_tables import is_nested, nested_budget_table, nested_tables
from apportion.study.report.query import (
    INTERVAL,
    Records,
    asked,
    beside,
    main_method,
    mean_sd,
    methods_of,
    percent,
    points_at,
    processors,
    seeds_of,
    select,
    speed_note,
    times_within,
    timings,
)
from apportion.study.report.speed_tables import (
    compute_table,
    latency_table,
    protocol_tables,
    throughput_table,
)
from apportion.study.report.table import Table


def study_tables(experiment: Experiment, records: Records) -> list[Table]:
    """Every table that the records of an experiment can fill."""
    tables = [
        goal_table(experiment, records),
        budget_table(experiment, records),
        *nested_tables(experiment, records),
        *method_tables(experiment, records),
        data_table(experiment, records),
        grid_table(experiment, records),
        sweep_table(experiment, records),
        latency_table(records),
        *protocol_tables(experiment, records),
        throughput_table(records),
        compute_table(records),
        *(() if is_nested(experiment) else gate_tables(experiment, records)),
        scoring_table(records),
        accounting_table(experiment, records),
        time_table(experiment, records),
    ]
    return [table for table in tables if table.rows]


def budget_table(experiment: Experiment, records: Records) -> Table:
    """What each budget costs and keeps, for the one checkpoint with the knob."""
    if is_nested(experiment):
        return nested_budget_table(experiment, records)
    method = main_method(experiment)
    rows = []
    for budget in (*experiment.budgets, 1.0):
        cells = {
            form: select(records, kind="point", method=method, form=form, budget=budget)
            for form in ("soft", "hard", "cut")
        }
        if not cells["soft"]:
            continue
        if budget == 1.0:
            cells["cut"] = []  # nothing is cut there
        speed = timings(records, method=method, form="cut", budget=budget)
        rows.append(
            (
                asked(budget),
                mean_sd([p["cost"] for p in cells["soft"]], 3),
                mean_sd([p["cost"] for p in cells["hard"]], 3),
                percent(cells["soft"]),
                percent(cells["hard"]),
                percent(cells["cut"]),
                times_within(speed),
                f"{statistics.mean(r['bound'] for r in speed):.2f}x" if speed else "–",
            )
        )
    speed_words = speed_note("the same model uncut", timings(records, method=method))
    return Table(
        "budgets",
        "What each budget costs and keeps",
        (
            "budget asked",
            "cost paid, soft",
            "cost paid, hard",
            "accuracy, soft",
            "accuracy, hard",
            "accuracy, cut model",
            "speed, cut model",
            "by MACs",
        ),
        tuple(rows),
        f"Method {method}, test rows, {seeds_of(records, method)}. {speed_words}".strip(),
    )


def method_tables(experiment: Experiment, records: Records) -> list[Table]:
    """Each method at each budget, beside the paper where it has the same row; a table a name."""
    names = dict.fromkeys(row.table for row in experiment.rows)
    return [_method_table(experiment, records, name) for name in names]


def _method_table(experiment: Experiment, records: Records, name: str) -> Table:
    wanted = [row for row in experiment.rows if row.table == name]
    beside_paper = any(row.paper_accuracy != "–" for row in wanted)
    soft = beside_paper and any(row.form == "soft" for row in wanted)  # other costs are as asked
    timed = any(row.paper_speedup != "–" for row in wanted)
    rows = []
    for row in wanted:
        points = points_at(records, row.method, row.form, row.budget)
        if not points:
            continue
        accuracy = [100 * p["accuracy"] for p in points]
        costs = [] if row.form == "baseline" else [p["cost"] for p in points]
        cells = [row.name, asked(row.budget), row.form, str(len(points)), mean_sd(costs, 3)]
        if beside_paper:
            cells += [row.paper_cost] + [beside(costs, row.paper_cost, 3)] * soft
        cells += [percent(points), f"{min(accuracy):.2f}"]
        if beside_paper:
            cells += [row.paper_accuracy, beside(accuracy, row.paper_accuracy)]
        if timed:
            # With all units open there is nothing to be faster than.
            form = "dense" if row.budget == 1.0 else row.form
            method = main_method(experiment) if row.form == "dense" else row.method
            speed = timings(records, method=method, form=form, budget=row.budget)
            ratios = [r["speedup"] for r in speed]
            cells += [mean_sd([r["median_ms"] for r in speed], 0), row.paper_ms]
            cells += [times_within(speed), row.paper_speedup, beside(ratios, row.paper_speedup)]
        rows.append(tuple(cells))
    columns = ["method", "budget", "evaluated", "n", "cost"]
    columns += ["paper's cost"] * beside_paper + ["difference of cost"] * soft
    columns += ["accuracy", "lowest", *["paper's accuracy", "difference"] * beside_paper]
    columns += ["ms", "paper's ms", "speed-up", "paper's speed-up", "difference of speed"] * timed
    note = "Accuracy in percent on test rows: mean ± sample standard deviation over n runs."
    if timed:
        rows_timed = {r["rows"] for r in timings(records)}
        note += (
            f" Speed: one thread, {' or '.join(f'{n:,}' for n in sorted(rows_timed))} rows padded, "
            f"{processors(timings(records))}; ratios of each seed averaged, {INTERVAL}; the "
            "paper's milliseconds are of its rows and machine."
        )
    if beside_paper:
        note += f" {experiment.beside_paper}"
    title = "Every method" if name == "core" else name.replace("-", " ").capitalize()
    return Table(
        name,
        f"{title}, beside the paper" if beside_paper else title,
        tuple(columns),
        tuple(rows),
        note,
    )


def data_table(experiment: Experiment, records: Records) -> Table:
    """What is known of a task's texts, averaged over the seeds that drew them."""
    found = {
        record["data_seed"]: record["facts"]["splits"]
        for record in select(records, kind="stage")
        if record.get("facts")
    }
    rows = []
    for split in SPLITS if found else ():
        of_split = [facts[split] for facts in found.values()]
        rows.append(
            (
                split,
                f"{of_split[0]['rows']:,}",
                mean_sd([f["tokens"] for f in of_split], 1),
                mean_sd([100 * f["full"] for f in of_split], 2),
                mean_sd([100 * f["unknown"] for f in of_split], 2),
                " / ".join(str(f["duplicates"]) for f in of_split),
            )
        )
    return Table(
        "data",
        "The texts",
        (
            "split",
            "rows",
            "words in a text",
            "as long as the limit, %",
            "unknown words, %",
            "duplicates",
        ),
        tuple(rows),
        f"Over {len(found)} draws. Duplicates, a number a draw: of training rows those that stand "
        "there twice, of the others those whose text is also in training.",
    )


def grid_table(experiment: Experiment, records: Records) -> Table:
    """Dense accuracy for each data seed and optimisation seed."""
    rows = []
    for data_seed in experiment.data_seeds:
        cells = []
        for seed in experiment.seeds:
            where = {"method": "dense", "form": "dense", "data_seed": data_seed, "seed": seed}
            cells.append(percent(select(records, kind="point", **where)))
        rows.append((f"data seed {data_seed}", *cells))
    if len(rows) < 2 or experiment.paired:
        rows = []
    return Table(
        "grid",
        "Dense accuracy, cell by cell",
        ("", *(f"seed {seed}" for seed in experiment.seeds)),
        tuple(rows),
        "Each cell is one training run, on the test rows of its own data seed.",
    )


def sweep_table(experiment: Experiment, records: Records) -> Table:
    """The budgets of the sweep for each elastic method, averaged over seeds."""
    rows = []
    shown = experiment.figure or methods_of(experiment)
    methods = [m for m in shown if select(records, kind="monotone", method=m)]
    methods = [] if is_nested(experiment) else methods  # those have a table of their own
    budgets = sorted(
        {p["budget"] for m in methods for p in select(records, kind="point", method=m)}
    )
    for budget in budgets:
        row = [asked(budget)]
        for method in methods:
            for form in ("soft", "hard"):
                where = {"method": method, "form": form, "budget": budget}
                points = select(records, kind="point", **where)
                if not points:
                    row.append("–")
                    continue
                cost = statistics.mean(p["cost"] for p in points)
                accuracy = statistics.mean(100 * p["accuracy"] for p in points)
                row.append(f"{accuracy:.2f} at {cost:.3f}")
        rows.append(tuple(row))
    verdicts = []
    for method in methods:
        found = select(records, kind="monotone", method=method)
        held = sum(bool(r["monotone"]) for r in found)
        verdicts.append(f"{method}: cost monotone in {held} of {len(found)} seeds")
    return Table(
        "sweep",
        "The sweep: accuracy at cost",
        ("budget", *(f"{m}, {form}" for m in methods for form in ("soft", "hard"))),
        tuple(rows),
        "; ".join(verdicts) + "." if verdicts else "",
    )


def scoring_table(records: Records) -> Table:
    """What it took to score the units one by one, beside a whole pass for each."""
    found = [r for r in select(records, kind="scores") if "share_of_passes" in r]
    rows = tuple(
        (
            r["method"],
            str(r["seed"]),
            str(r["passes"]),
            f"{r['seconds']:.0f}",
            f"{100 * r['share_of_passes']:.0f} %",
            f"{100 * r['share_of_padded_passes']:.0f} %",
        )
        for r in found
    )
    return Table(
        "scoring",
        "Switching each unit off by itself",
        ("method", "seed", "units", "seconds", "of whole passes", "of whole padded passes"),
        rows,
        "Seconds of the process that did it, and their share of a pass from the embeddings for "
        "each unit: over the same batches, rows of like length together, and over rows padded to "
        "the whole length.",
    )
