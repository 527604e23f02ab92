"""What the commands that run experiments share: running one, and showing what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from apportion.cli.main import err
from apportion.data.task import SPLITS, Task
from apportion.data.text import Text
from apportion.elastic.card import unlabelled_in_words
from apportion.elastic.vouching import FEWEST
from apportion.files import holding, write_text
from apportion.method.units import UNITS
from apportion.study import records
from apportion.study.bars import Bars
from apportion.study.completion import was_done
from apportion.study.delivery import deliver
from apportion.study.driver import local_driver as driver
from apportion.study.experiment import Experiment
from apportion.study.presets import Preset
from apportion.study.report.budget_tables import budget_table
from apportion.study.report.terminal import show
from apportion.training.tuning import FEWEST as FEWEST_VIEWS


def make(preset: Preset, into: Path, as_json: bool) -> None:
    """Runs an experiment into a folder: its file, records, last checkpoint and report."""
    plan, file = preset.experiment(), into / "experiment.toml"
    if preset.warning:
        err.print(preset.warning, highlight=False)
    with holding(into):
        write_text(file, preset.to_toml())
        have = run_plan(plan, into / "stages", results_of(file), jobs=1)
        made = deliver(plan, have, into, agreement=preset.agreement).notes["training"]
    show([budget_table(plan, have)], as_json)
    if said := made_in_words(made):
        err.print(said, highlight=False)
    places = f"checkpoint: {into / 'checkpoint'}\nreport:     {into / 'report.html'}"
    err.print(places, highlight=False)


def made_in_words(facts: Mapping[str, Any]) -> str:
    """How far a converted model was repaired and tuned, and what it vouches for: a line each."""
    said = []
    if "repair_rows" in facts:
        said.append(
            f"repair:     {facts['repair_rows']:,} rows fitted to, {facts['repair_held_out']:,} "
            f"held out, {facts['repair_share']:.0%} of the fit taken"
        )
    if (tuned := facts.get("tuned", {})).get("rows"):
        said.append(
            f"tuning:     {tuned['rows']:,} views learned from, {tuned['share']:.0%} of the way "
            f"taken; distance from the whole model {tuned['before']:.2f} before, "
            f"{tuned['after']:.2f} after"
        )
    elif tuned:
        said.append(
            f"tuning:     none: {FEWEST_VIEWS} views at least are worth it, and fewer were asked "
            "for or had time"
        )
    if "vouched" in facts:
        said.append(_vouched_in_words(facts["vouched"]))
    return "\n".join(said)


def _vouched_in_words(told: Mapping[str, Any]) -> str:
    """From which budget on a converted model answers as the whole one, and on what evidence."""
    bottom = told.get("from", 1.0)
    if told["rows"] < FEWEST:
        begins = f"budgets from {bottom:g}, " if "agreement" in told else ""
        return (
            f"range:      {begins}not vouched for: {told['rows']:,} texts were left for it, which "
            f"can only rule budgets out, and {FEWEST} are needed"
        )
    share, bound = told["agreement"].get(f"{bottom:g}", (1.0, 1.0))
    return (
        f"range:      budgets from {bottom:g}, which answers as the whole model on {share:.1%} of "
        f"{told['rows']:,} other texts (at least {bound:.1%}, 95 % confidence; "
        f"{told['asked']:.0%} was asked for)"
    )


def check_units(units: str) -> str:
    """What a budget switches off, as people ask for it."""
    if units not in UNITS:
        raise ValueError(f"--units is one of {', '.join(UNITS)}, not {units!r}")
    return units


def results_of(file: Path) -> Path:
    """Where the records of an experiment file are."""
    return file.parent / "results" / f"{file.stem}.jsonl"


def run_plan(
    plan: Experiment,
    runs: Path,
    results: Path,
    jobs: int,
    *,
    engine: str = "local",
    address: str | None = None,
) -> list[dict[str, Any]]:
    """Runs what has no records yet, with bars; all records."""
    with holding(runs, results):
        have = records.read(results)
        unfinished = driver.unfinished(plan, have, results=results)
        # What the plan keeps at an older version is not what another stage has to make anew.
        kept = {stage.key for stage in plan.stages}
        older = [record for record in have if record.get("stage") not in kept]
        again = sorted({stage.method for stage in unfinished[0] if was_done(stage, older)})
        if again:
            err.print(f"due again, by a newer version: {', '.join(again)}", highlight=False)
        if isinstance(plan.task, Text) and any(unfinished):
            # Bad rows are found before any training, and people see what they train on.
            _show_data(plan.stages[0].build_task())
        try:
            with Bars(err) as bars:
                if engine == "ray":
                    from apportion.study.driver import ray_driver

                    return ray_driver.run(
                        plan, runs, results=results, watcher=bars, address=address
                    )
                return driver.run(plan, runs, results=results, watcher=bars, jobs=jobs)
        except KeyboardInterrupt:
            err.print("stopped; the same command goes on where it was")
            raise typer.Exit(130) from None


def _show_data(task: Task) -> None:
    sizes = ", ".join(f"{len(task.split(name)):,} {name}" for name in SPLITS)
    splits = task.facts["splits"]
    shared = ", ".join(f"{splits[name]['duplicates']:,} of {name}" for name in SPLITS[1:])
    err.print(
        f"data: {sizes} rows of {len(task.classes)} classes, {task.facts['vocabulary']:,} words; "
        f"also in training: {shared}; twice in training: {splits['train']['duplicates']:,}",
        highlight=False,
    )
    if "unlabelled" in task.facts:
        err.print(unlabelled_in_words(task.facts["unlabelled"]), highlight=False)
