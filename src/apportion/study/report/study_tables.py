"""Records → the tables of a study: every number that people see comes from here."""

from __future__ import annotations

from apportion.data.task import SPLITS
from apportion.study.experiment import Experiment
from apportion.study.report.accounting import (
    accounting_table,
    conversion_table,
    scoring_table,
    time_table,
)
from apportion.study.report.budget_tables import against_table, budget_table, sweep_table
from apportion.study.report.claim_tables import goal_table
from apportion.study.report.gate_tables import gate_tables
from apportion.study.report.paired import NONE_KEPT, Kept
from apportion.study.report.paired_tables import dense_table, specialist_table
from apportion.study.report.query import (
    INTERVAL,
    Records,
    asked,
    beside,
    main_method,
    mean_sd,
    percent,
    points_at,
    processors,
    select,
    times_within,
    timings,
)
from apportion.study.report.speed_tables import (
    compute_table,
    latency_table,
    protocol_tables,
    switching_table,
    throughput_table,
)
from apportion.study.report.table import Table


def study_tables(
    experiment: Experiment, records: Records, *, answers: Kept = NONE_KEPT
) -> list[Table]:
    """Every table that the records of an experiment, and its answers to each row, can fill."""
    tables = [
        goal_table(experiment, records, answers=answers),
        budget_table(experiment, records),
        against_table(experiment, records),
        dense_table(experiment, records, answers=answers),
        specialist_table(experiment, records, answers=answers),
        switching_table(records),
        conversion_table(records),
        *method_tables(experiment, records),
        data_table(records),
        grid_table(experiment, records),
        sweep_table(experiment, records),
        latency_table(records),
        *protocol_tables(experiment, records),
        throughput_table(records),
        compute_table(records),
        *gate_tables(experiment, records),
        scoring_table(records),
        accounting_table(experiment, records),
        time_table(experiment, records),
    ]
    return [table for table in tables if table.rows]


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


def data_table(records: Records) -> Table:
    """What is known of a task's texts, averaged over the seeds that drew them."""
    found = {
        record["data_seed"]: record["facts"]["splits"]
        for record in select(records, kind="stage")
        if record.get("facts")
    }
    rows = []
    for split in SPLITS if found else ():
        facts = [splits[split] for splits in found.values()]
        rows.append(
            {
                "split": split,
                "rows": f"{facts[0]['rows']:,}",
                "words in a text": mean_sd([fact["tokens"] for fact in facts], 1),
                "as long as the limit, %": mean_sd([100 * fact["full"] for fact in facts], 2),
                "unknown words, %": mean_sd([100 * fact["unknown"] for fact in facts], 2),
                "duplicates": " / ".join(str(fact["duplicates"]) for fact in facts),
            }
        )
    note = (
        f"Over {len(found)} draws. Duplicates, a number a draw: of training rows those that stand "
        "there twice, of the others those whose text is also in training."
    )
    return Table.of_rows("data", "The texts", rows=rows, note=note)


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
