"""The command that re-runs the paper: reproduce."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli.main import AsJson, app, err

if TYPE_CHECKING:
    from apportion.study.paper import PaperTable, Plan, Settings
    from apportion.study.report.paper_tables import Ran, Section
    from apportion.study.report.table import Table


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
            "\\[default: runs/reproduce, with -quick, -hub or a device]",
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
    from apportion.data.stand_ins import write_docstrings
    from apportion.files import holding, write_text
    from apportion.study.paper import QUICK, read_plan
    from apportion.study.report.markdown import fill
    from apportion.study.report.paper_tables import reproduction_tables, sections_of, write_report
    from apportion.study.report.terminal import show

    if not file.exists():
        raise ValueError(
            f"there is no plan {file}; run this in a clone of the project, or say --plan"
        )
    if filled and (quick or names):
        raise ValueError("--fill writes what all tables show in full; not with --quick or names")
    plan = read_plan(file)
    chosen = plan.choose(names or [])
    place = into or _default_place(quick, hub, device)
    how = _settings(plan, chosen, quick, hub, device, data or [], model or [], place)
    if listed:
        show([_list(plan, chosen, how)], as_json)
        return
    records_in, stages_in = results or place / "results", runs or place / "stages"
    ran = _studies(plan, chosen, how, records_in, whole=not names)
    failed: list[str] = []
    if not report_only:
        if quick:
            err.print(QUICK, style="yellow")
        used = [p for name in ran for p in (stages_in / name, records_in / f"{name}.jsonl")]
        with holding(place, *used):
            for name, folder in how.stand_ins.items():
                if not (folder / "test.csv").exists():
                    write_docstrings(folder, plan.texts[name].stand_in)
            side_by_side = jobs or min(2, os.cpu_count() or 1)
            failed = _run(plan, chosen, ran, stages_in, records_in, side_by_side)
        ran = _studies(plan, chosen, how, records_in, whole=not names)
    sections = sections_of(chosen, ran, quick)
    tables = reproduction_tables(sections)
    texts = {page: fill(page.read_text(encoding="utf-8"), "paper", tables) for page in filled or ()}
    page, text = write_report(plan, sections, place, quick)
    for target, new in texts.items():
        write_text(target, new)
    verdicts = tables[0]
    if quick:
        verdicts = replace(verdicts, name="quick verdicts", title=f"{verdicts.title} (quick)")
    show([verdicts], as_json)
    _say_what_is_missing(sections)
    err.print(f"report: {page}\n        {text}", highlight=False)
    if failed:
        raise typer.Exit(1)


def _default_place(quick: bool, hub: bool, device: str) -> Path:
    """Where a run of this kind goes: what was measured in another way lies elsewhere."""
    ways = ["quick"] * quick + ["hub"] * hub + [device.replace(":", "-")] * (device != "cpu")
    return Path("runs") / "-".join(["reproduce", *ways])


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
    from apportion.data.sources import read_source
    from apportion.study.paper import Settings

    if quick and hub:
        raise ValueError("--quick runs on what is here, --hub downloads: choose one of them")
    _check_device(device)
    texts = _folders("--data", data, set(plan.texts))
    wanted = {plan.study(table.study).data for table in chosen}
    return Settings(
        quick=quick,
        hub=hub,
        device=device,
        data=texts,
        digests={
            name: read_source(str(f), ("text",), "label").digest() for name, f in texts.items()
        },
        models=_folders("--model", models, {s.model for s in plan.studies if s.model}),
        stand_ins={
            name: place / "data" / name
            for name in plan.texts
            if quick and name in wanted and name not in texts
        },
    )


def _check_device(device: str) -> None:
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"--device {device!r} is none that torch knows") from None
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind != "cpu" and (here is None or here.type != kind):
        raise ValueError(f"--device {device!r}: there is none here")


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


def _studies(
    plan: Plan, chosen: Sequence[PaperTable], how: Settings, results: Path, whole: bool
) -> dict[str, Ran]:
    """The studies of the chosen tables in the plan's order, with the records that are there.

    If all tables are wanted, so are all stages; else those that the chosen ones need.
    """
    from apportion.study import experiment, records
    from apportion.study.paper import lacking_extras, part_of, study_experiment
    from apportion.study.report.paper_tables import Ran

    ran = {}
    for study in plan.studies:
        tables = [table for table in chosen if table.study == study.name]
        if not tables:
            continue
        full = study_experiment(plan, study, how)
        methods = {method for table in tables for method in table.methods_in(full)}
        part = full if whole else part_of(full, methods)
        have = experiment.current(part, records.read(results / f"{study.name}.jsonl"))
        lacks = (*how.lacks(study), *lacking_extras(part))
        differs = how.differs(plan, study)
        ran[study.name] = Ran(study, how.file(study), part, have, differs, lacks)
    return ran


def _run(
    plan: Plan,
    chosen: Sequence[PaperTable],
    ran: Mapping[str, Ran],
    runs: Path,
    results: Path,
    jobs: int,
) -> list[str]:
    """Runs what has no records yet, study by study; the names of those that failed."""
    from apportion.data.text import Text
    from apportion.study.bars import Overview
    from apportion.study.driver import local_driver as driver
    from apportion.study.report.paper_tables import expected_seconds

    todo = []
    for name, of in ran.items():
        if any(driver.unfinished(of.experiment, of.records)):
            if of.lacks:
                err.print(f"{name} is left out; it needs {' and '.join(of.lacks)}", highlight=False)
            else:
                todo.append(of)
    for of in todo:  # bad data is found before anything is trained
        if isinstance(of.experiment.task, Text):
            of.experiment.stages[0].build_task()
    failed = []
    tables, done = _pieces(chosen, [of for of in ran.values() if of in todo or not of.lacks])
    try:
        with Overview(err, tables, done, expected_seconds(plan, todo), jobs) as overview:
            for of in todo:
                name = of.study.name
                try:
                    file = results / f"{name}.jsonl"
                    driver.run(of.experiment, runs / name, file, overview, jobs)
                except (OSError, ValueError) as error:  # the other studies can still run
                    failed.append(name)
                    err.print(f"{name} failed: {error}", style="red", markup=False)
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None
    return failed


def _pieces(
    chosen: Sequence[PaperTable], ran: Sequence[Ran]
) -> tuple[dict[str, set[str]], set[str]]:
    """The pieces of work of each table, and those that are done."""
    from apportion.study.driver import local_driver as driver
    from apportion.study.paper import timing_of
    from apportion.study.report.paper_tables import stages_of

    tables: dict[str, set[str]] = {}
    done: set[str] = set()
    for of in ran:
        todo, to_time = driver.unfinished(of.experiment, of.records)
        pieces = {stage.key: {stage.key} for stage in of.experiment.stages}
        for stage in of.experiment.stages:
            if stage.latency:
                pieces[stage.key].add(timing_of(stage.key))
        everything = set().union(*pieces.values())
        done |= everything - {s.key for s in todo} - {timing_of(s.key) for s in to_time}
        named: set[str] = set()
        for table in chosen:
            if table.study == of.study.name:
                wanted = [pieces[stage.key] for stage in stages_of(table, of.experiment)]
                tables[table.title] = set().union(*wanted)
                named |= tables[table.title]
        if everything - named:
            tables[f"beyond the paper, {of.study.name}"] = everything - named
    return tables, done


def _list(plan: Plan, chosen: Sequence[PaperTable], how: Settings) -> Table:
    """What each table needs, and how long it took where the plan's own records were made."""
    from apportion.study.paper import lacking_extras, part_of, study_experiment
    from apportion.study.report.paper_tables import Ran, expected_seconds
    from apportion.study.report.table import Table

    rows: list[tuple[str, ...]] = []
    for table in chosen:
        study = plan.study(table.study)
        whole = study_experiment(plan, study, replace(how, quick=False, stand_ins={}))
        of = Ran(study, how.file(study), part_of(whole, table.methods_in(whole)), [])
        took = expected_seconds(plan, [of])
        stages = of.experiment.stages
        known = all(stage.key in took for stage in stages)
        needs = [f"--data {study.data}=FOLDER"] * bool(study.data and not how.hub)
        needs += [f"--model {study.model}=FOLDER"] * bool(study.model and not how.hub)
        needs += lacking_extras(of.experiment)
        minutes = f"{sum(took.values()) / 60:.0f}" if known else "–"
        rows.append(
            (table.name, table.title, of.file, ", ".join(needs) or "–", str(len(stages)), minutes)
        )
    return Table(
        "list",
        "The paper's tables",
        ("name", "table", "experiment", "needs", "stages", "minutes"),
        tuple(rows),
        "Minutes of one process where the records of this repository were made, warm starts "
        "included: tables of one study share them, and two processes side by side take half. With "
        "--quick no folder is needed, and all of it takes minutes.",
    )


def _say_what_is_missing(sections: Sequence[Section]) -> None:
    missing: dict[str, Any] = {}
    for section in sections:
        if section.done < section.stages:
            missing.setdefault(section.ran.study.name, []).append(section.table.name)
    for study, tables in missing.items():
        err.print(f"not complete: {', '.join(tables)} ({study})", style="yellow", highlight=False)
