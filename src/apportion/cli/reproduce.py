"""The command that re-runs the paper: reproduce."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from apportion import driver, experiment, records
from apportion.cli.app import AsJson, app, err
from apportion.progress import Overview
from apportion.report.markdown import fill
from apportion.report.reproduction import (
    Ran,
    Section,
    reproduction_tables,
    seconds_of,
    sections_of,
    stages_of,
    write_report,
)
from apportion.report.tables import Table, select
from apportion.report.terminal import show
from apportion.reproduction import (
    QUICK,
    PaperTable,
    Plan,
    Settings,
    part_of,
    read_plan,
    study_experiment,
)
from apportion.stages import is_done
from apportion.tasks.docstrings import write_docstrings
from apportion.tasks.text import Text


@app.command(
    epilog="[bold]apportion reproduce --quick[/] shows the whole of it in minutes, without any "
    "data. [bold]apportion reproduce core sweep[/] runs two tables; their names stand in "
    "[bold]apportion reproduce --list[/]."
)
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Tables to run; all of them if none is named.", show_default=False),
    ] = None,
    file: Annotated[
        Path, typer.Option("--plan", help="What the paper's tables are, and its claims.")
    ] = Path("experiments/paper.toml"),
    into: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for report, figures, records and checkpoints. "
            "\\[default: runs/reproduce, or runs/reproduce-quick]",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the records; what is there is not run again. \\[default: OUT/results]"
        ),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints. \\[default: OUT/stages]")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A folder of texts by its name in the plan: ag_news=FOLDER."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A folder of a pretrained model: bert_tiny=FOLDER."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Every table reduced to minutes: one seed, few rows."),
    ] = False,
    hub: Annotated[
        bool,
        typer.Option("--hub", help="Download the paper's own models and data, and run those."),
    ] = False,
    device: Annotated[
        str, typer.Option(help="Where models are measured and timed: cpu, cuda, mps.")
    ] = "cpu",
    jobs: Annotated[
        int | None, typer.Option(help="Stages side by side. \\[default: 2, on one core 1]")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Say what each table needs and how long it takes.")
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write the report from the records; run nothing.")
    ] = False,
    filled: Annotated[
        list[Path] | None,
        typer.Option("--fill", help="A Markdown file whose marked tables are written anew."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the paper's tables, and write its numbers and claims beside what came out here.

    Warm starts are shared between tables. Killed at any moment, the same command goes on where it
    was. The report is one page (report.html), the same in Markdown, and figures as SVG and PNG.
    """
    if not file.exists():
        raise ValueError(
            f"there is no plan {file}; run this in a clone of the project, or say --plan"
        )
    plan = read_plan(file)
    chosen = plan.choose(names or [])
    place = into or Path("runs/reproduce-quick" if quick else "runs/reproduce")
    how = _settings(plan, chosen, quick, hub, device, data or [], model or [], place)
    if listed:
        show([_list(plan, chosen, how)], as_json)
        return
    records_in = results or place / "results"
    ran = _studies(plan, chosen, how, records_in, whole=not names)
    if not report_only:
        if quick:
            err.print(QUICK, style="yellow")
        _run(plan, chosen, ran, runs or place / "stages", records_in, jobs or _jobs(), quick)
        ran = _studies(plan, chosen, how, records_in, whole=not names)
    sections = sections_of(plan, chosen, ran)
    tables = reproduction_tables(plan, sections)
    texts = {page: fill(page.read_text(encoding="utf-8"), "paper", tables) for page in filled or ()}
    page, text = write_report(plan, sections, place, quick)
    for target, new in texts.items():
        records.write_text(target, new)
    verdicts = tables[0]
    show([replace(verdicts, title=f"{verdicts.title} (quick)") if quick else verdicts], as_json)
    _say_what_is_missing(sections)
    err.print(f"report: {page}\n        {text}", highlight=False)


def _settings(
    plan: Plan,
    chosen: Sequence[PaperTable],
    quick: bool,
    hub: bool,
    device: str,
    data: Sequence[str],
    models: Sequence[str],
    place: Path,
) -> Settings:
    """The options as values, checked against the plan."""
    if quick and hub:
        raise ValueError("--quick runs on what is here, --hub downloads: choose one of them")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"--device {device!r} is none that torch knows") from None
    if kind != "cpu" and not (
        torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == kind  # type: ignore[union-attr]
    ):
        raise ValueError(f"--device {device!r}: there is none here")
    texts = _folders("--data", data, {s.data for s in plan.studies if s.data})
    stand_ins = {}
    for name in {plan.study(table.study).data for table in chosen} if quick else ():
        if name and name not in texts:
            stand_ins[name] = place / "data" / name
            if not (place / "data" / name / "test.csv").exists():
                write_docstrings(place / "data" / name, plan.stand_ins[name])
    return Settings(
        quick,
        hub,
        device,
        texts,
        _folders("--model", models, {s.model for s in plan.studies if s.model}),
        stand_ins,
    )


def _folders(option: str, given: Sequence[str], known: set[str]) -> dict[str, Path]:
    """NAME=FOLDER, several of them."""
    folders = {}
    for word in given:
        name, equals, folder = word.partition("=")
        if not equals or name not in known:
            wanted = " or ".join(f"{one}=FOLDER" for one in sorted(known))
            raise ValueError(f"{option} takes {wanted}, not {word!r}")
        if not Path(folder).is_dir():
            raise ValueError(f"{option} {name}: there is no folder {folder}")
        folders[name] = Path(folder)
    return folders


def _jobs() -> int:
    return min(2, os.cpu_count() or 1)


def _studies(
    plan: Plan, chosen: Sequence[PaperTable], how: Settings, results: Path, whole: bool
) -> dict[str, Ran]:
    """The studies of the chosen tables in the plan's order, with the records that are there.

    If all tables are wanted, so are all stages; else those that the chosen ones need.
    """
    ran = {}
    for study in plan.studies:
        tables = [table for table in chosen if table.study == study.name]
        if not tables:
            continue
        full = study_experiment(plan, study, how)
        methods = {method for table in tables for method in table.methods_in(full)}
        part = full if whole else part_of(full, methods)
        have = experiment.current(part, records.read(results / f"{study.name}.jsonl"))
        ran[study.name] = Ran(study, part, have, tuple(how.lacks(study)))
    return ran


def _run(
    plan: Plan,
    chosen: Sequence[PaperTable],
    ran: Mapping[str, Ran],
    runs: Path,
    results: Path,
    jobs: int,
    quick: bool,
) -> None:
    """Runs what has no records yet, study by study."""
    todo = {}
    for name, of in ran.items():
        if any(driver.unfinished(of.experiment, of.records)):
            if of.lacks:
                err.print(f"{name} is left out; it needs {' '.join(of.lacks)}", highlight=False)
            else:
                todo[name] = of
    for of in todo.values():  # bad data is found before anything is trained
        if isinstance(of.experiment.task, Text):
            of.experiment.stages[0].build_task()
    reference = {} if quick else _reference(plan, ran)
    runnable = [of for of in ran.values() if not (of.lacks and of.study.name not in todo)]
    done = {
        stage.key for of in runnable for stage in of.experiment.stages if is_done(stage, of.records)
    }
    tables = {
        table.title: {stage.key for stage in stages_of(table, ran[table.study].experiment)}
        for table in chosen
        if table.study in todo
    }
    for name, of in todo.items():
        others = {stage.key for stage in of.experiment.stages}.difference(*tables.values())
        if others:
            tables[f"beyond the paper, {name}"] = others
    try:
        with Overview(err, tables, done, reference, jobs) as overview:
            for name, of in todo.items():
                driver.run(of.experiment, runs / name, results / f"{name}.jsonl", overview, jobs)
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None


def _reference(plan: Plan, ran: Mapping[str, Ran]) -> dict[str, float]:
    """Seconds of each stage where the plan's own records have one of its method."""
    expected = {}
    for name, of in ran.items():
        have = records.read(plan.folder / "results" / f"{name}.jsonl")
        for stage in of.experiment.stages:
            alike = select(have, kind="stage", method=stage.method, only=stage.only)
            if alike:
                expected[stage.key] = statistics.median(seconds_of(r) for r in alike)
    return expected


def _list(plan: Plan, chosen: Sequence[PaperTable], how: Settings) -> Table:
    """What each table needs, and how long it took where the plan's own records were made."""
    rows: list[tuple[str, ...]] = []
    for table in chosen:
        study = plan.study(table.study)
        full = study_experiment(plan, study, replace(how, quick=False))
        reference = _reference(plan, {study.name: Ran(study, full, [])})
        stages = stages_of(table, full)
        known = [reference[stage.key] for stage in stages if stage.key in reference]
        needs = [f"--data {study.data}=FOLDER"] * bool(study.data)
        needs += [f"--model {study.model}=FOLDER"] * bool(study.model)
        if full.model.get("pretrained") == "minilm":
            needs.append("the extra minilm")
        minutes = f"{sum(known) / 60:.0f}" if len(known) == len(stages) else "–"
        rows.append(
            (
                table.name,
                table.title,
                study.file,
                ", ".join(needs) or "–",
                str(len(stages)),
                minutes,
            )
        )
    return Table(
        "list",
        "The paper's tables",
        ("name", "table", "experiment", "needs", "stages", "minutes"),
        tuple(rows),
        "Minutes of one process, warm starts included: tables of one study share them, and two "
        "processes side by side take half. With --quick nothing is needed, and all of it takes "
        "minutes.",
    )


def _say_what_is_missing(sections: Sequence[Section]) -> None:
    missing: dict[str, Any] = {}
    for section in sections:
        if section.done < section.stages:
            missing.setdefault(section.ran.study.name, []).append(section.table.name)
    for study, tables in missing.items():
        err.print(f"not complete: {', '.join(tables)} ({study})", style="yellow", highlight=False)
