"""What the commands that run experiments share: running one, and making one of a template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import typer

from apportion.cli.main import err
from apportion.data.task import SPLITS, Task
from apportion.data.text import Text
from apportion.elastic.checkpoint import save
from apportion.files import holding, write_text
from apportion.models.hub import load_model, load_words, weights_files_digest
from apportion.study import experiment, records
from apportion.study.bars import Bars
from apportion.study.driver import local_driver as driver
from apportion.study.production import produce
from apportion.study.report.budget_tables import budget_table
from apportion.study.report.page import write_page
from apportion.study.report.terminal import show
from apportion.study.stages import was_done


def make(toml: str, into: Path, as_json: bool) -> None:
    """Runs an experiment into a folder: its file, records, last checkpoint and report."""
    plan = experiment.parse_experiment(toml)
    file, page = into / "experiment.toml", into / "report.html"
    with holding(into):
        write_text(file, toml)
        have = run_plan(plan, into / "stages", results_of(file), jobs=1)
        last = plan.stages[-1]
        checkpoint = produce(last, into / "stages")
        measured = [r for r in have if r["kind"] == "point" and r["stage"] == last.key]
        notes = {**checkpoint.notes, "measured": measured}
        save(replace(checkpoint, notes=notes), into / "checkpoint")
        write_page(plan, have, page)
    show([budget_table(plan, have)], as_json)
    made = checkpoint.notes["training"]
    if "repair_rows" in made:
        err.print(
            f"repair:     {made['repair_rows']:,} rows fitted to, {made['repair_held_out']:,} held "
            f"out, {made['repair_share']:.0%} of the fit taken",
            highlight=False,
        )
    err.print(f"checkpoint: {into / 'checkpoint'}\nreport:     {page}", highlight=False)


def check_units(units: str) -> str:
    """What a budget switches off, as people ask for it."""
    if units not in experiment.UNITS:
        raise ValueError(f"--units is one of {', '.join(experiment.UNITS)}, not {units!r}")
    return units


def read_template(name: str) -> str:
    """The experiment that a command writes, with places for numbers."""
    return (resources.files("apportion.study") / "templates" / f"{name}.toml").read_text(
        encoding="utf-8"
    )


def facts_of_texts(spec: Text) -> dict[str, Any]:
    """What the experiment file says of some texts; reads them, so bad ones are found now."""
    drawn = spec.draw()
    return {
        "title": json.dumps(Path(spec.data).name or spec.data, ensure_ascii=False),
        "data": json.dumps(spec.data, ensure_ascii=False),
        "digest": json.dumps(drawn.digest),
        "text": json.dumps(list(spec.text), ensure_ascii=False),
        "label": json.dumps(spec.label, ensure_ascii=False),
        **{name: len(rows) for name, rows in drawn.rows.items()},
    }


def facts_of_model(name: str, length: int, trained_for: Sequence[str] = ()) -> str:
    """What the experiment file says of a pretrained model; reads it, so a bad one is found now."""
    load_words(name, length)
    load_model(name, trained_for or ("a", "b"), seed=0, trained=bool(trained_for))
    digest = weights_files_digest(name)
    return json.dumps(name, ensure_ascii=False) + (
        f"\ndigest = {json.dumps(digest)}" if digest else ""
    )


def results_of(file: Path) -> Path:
    """Where the records of an experiment file are."""
    return file.parent / "results" / f"{file.stem}.jsonl"


def run_plan(
    plan: experiment.Experiment, runs: Path, results: Path, jobs: int
) -> list[dict[str, Any]]:
    """Runs what has no records yet, with bars; all records."""
    with holding(runs, results):
        have = records.read(results)
        unfinished = driver.unfinished(plan, have)
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
                return driver.run(plan, runs, results, bars, jobs)
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
