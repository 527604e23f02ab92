"""Records → what a method takes: training jobs, things to deploy, minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apportion.study.experiment import Experiment
from apportion.study.report.query import Records, mean_sd, methods_of, select
from apportion.study.report.table import Table


def accounting_table(experiment: Experiment, records: Records) -> Table:
    """Training jobs and things to deploy for the table's budgets, counted from what was run."""
    rows = []
    count = len(experiment.budgets)
    ran = {record["stage"]: record for record in select(records, kind="stage")}
    cell = {"data_seed": experiment.data_seeds[0], "seed": experiment.seeds[0]}
    for method in methods_of(experiment):
        own = select(records, kind="stage", method=method, **cell)
        if not own or not (own[0]["recipe"] or own[0]["score"]):
            continue  # not run yet, or a baseline of another kind
        models = {key for record in own for key in _trained(record, ran)[:1]}
        nested = any(stage.nested for stage in experiment.stages_of(method))
        scored = own[0]["score"] is not None and not nested  # one order needs no masks
        if nested:
            models, control = {method}, "continuous"
        elif scored or len(own) > 1:
            control = "discrete"
        else:
            control = "one cost" if own[0]["recipe"]["objective"] == "dense" else "continuous"
        artifacts = f"{len(models)} model{'s' * (len(models) > 1)}" + f" + {count} masks" * scored
        artifacts += f" for {len(own)} of them" * (1 < len(own) < count)
        jobs = trainings_of(records, method=method, **cell)
        rows.append((method, str(len(jobs)), artifacts, control))
    return Table(
        "accounting",
        f"What it takes to serve {count} budgets",
        ("method", "fine-tune jobs", "artifacts", "control"),
        tuple(rows),
        "Counted from the stages that ran for one seed, warm starts included.",
    )


def trainings_of(records: Records, **cell: Any) -> list[Mapping[str, Any]]:
    """The trainings that a method took, each once: its own, and those that it came from."""
    ran = {record["stage"]: record for record in select(records, kind="stage")}
    own = select(records, kind="stage", **cell)
    return [ran[key] for key in dict.fromkeys(key for r in own for key in _trained(r, ran))]


def time_table(experiment: Experiment, records: Records) -> Table:
    """How long each method trained."""
    rows = []
    total = 0.0
    for method in methods_of(experiment):
        stages = select(records, kind="stage", method=method)
        trainings = [stage["training"] for stage in stages if stage["training"]]
        if trainings:
            seconds = [training["seconds"] for training in trainings]
            total += sum(seconds)
            rows.append(
                (
                    method,
                    str(len(trainings)),
                    str(trainings[0]["epochs"]),
                    mean_sd(seconds, 0),
                    f"{sum(seconds) / 60:.0f}",
                )
            )
    if rows:
        rows.append(("all", "", "", "", f"{total / 60:.0f}"))
    return Table(
        "time",
        "Training time",
        ("method", "runs", "epochs", "seconds a run", "minutes in all"),
        tuple(rows),
        "Wall-clock of the process that trained; runs may have gone side by side, one thread each.",
    )


def scoring_table(records: Records) -> Table:
    """What it took to score the units one by one, beside a whole pass for each."""
    rows = [
        {
            "method": r["method"],
            "seed": str(r["seed"]),
            "units": str(r["passes"]),
            "seconds": f"{r['seconds']:.0f}",
            "of whole passes": f"{100 * r['share_of_passes']:.0f} %",
            "of whole padded passes": f"{100 * r['share_of_padded_passes']:.0f} %",
        }
        for r in select(records, kind="scores")
        if "share_of_passes" in r
    ]
    note = (
        "Seconds of the process that did it, and their share of a pass from the embeddings for "
        "each unit: over the same batches, rows of like length together, and over rows padded to "
        "the whole length."
    )
    return Table.of_rows("scoring", "Switching each unit off by itself", rows=rows, note=note)


def conversion_table(records: Records) -> Table:
    """How long it took to convert a model."""
    found = [r for r in select(records, kind="scores") if "repair_seconds" in r]
    tuned = any("tuned" in r for r in found)
    rows = []
    for method in dict.fromkeys(r["method"] for r in found):
        of_method = [r for r in found if r["method"] == method]
        rows.append(
            {
                "method": method,
                "runs": str(len(of_method)),
                "rows scored": str(of_method[0].get("rows", "–")),
                "seconds": mean_sd([r["seconds"] for r in of_method if "seconds" in r], 0),
                "rows for the repair": str(of_method[0]["repair_rows"]),
                "seconds of it": mean_sd([r["repair_seconds"] for r in of_method], 0),
            }
        )
        if tuned:
            took = [r["tuned"] for r in of_method if "tuned" in r]
            rows[-1] |= {
                "views to tune by": f"{took[0]['rows']:,}" if took else "–",
                "seconds of that": mean_sd([t["seconds"] for t in took], 0) if took else "–",
            }
    note = "Seconds of the process that did it, one thread where it ran beside others."
    return Table.of_rows("conversion", "Conversion: what it took", rows=rows, note=note)


def _trained(record: Mapping[str, Any], ran: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The stages that had to be trained for one, itself first."""
    chain = [record["stage"]] if record["recipe"] else []
    parent = ran.get(record["parent"])
    return chain + (_trained(parent, ran) if parent else [])
