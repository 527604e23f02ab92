"""The command that re-runs the paper: reproduce."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.main import AsJson, app, err


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
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A folder of a pretrained model: bert_tiny=FOLDER."),
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
    from apportion.study.paper import read_plan
    from apportion.study.report.markdown import fill_files
    from apportion.study.report.paper_tables import list_table
    from apportion.study.report.terminal import show
    from apportion.study.reproduction import reproduce as run_reproduce

    if filled and (quick or names):
        raise ValueError("--fill writes what all tables show in full; not with --quick or names")
    if listed:
        show([list_table(read_plan(file), names or (), hub=hub)], as_json)
        return
    try:
        made = run_reproduce(
            names or (),
            file,
            quick=quick,
            hub=hub,
            data=_folders("--data", data or ()),
            models=_folders("--model", models or ()),
            device=device,
            out=into,
            results=results,
            runs=runs,
            jobs=jobs,
            report_only=report_only,
            console=err,
        )
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None
    fill_files(filled or (), "paper", made.tables)
    show([made.verdict_table], as_json)
    for study, tables in made.incomplete.items():
        err.print(f"not complete: {', '.join(tables)} ({study})", style="yellow", highlight=False)
    err.print(f"report: {made.page}\n        {made.markdown}", highlight=False)
    if made.failed:
        raise typer.Exit(1)


def _folders(option: str, words: Iterable[str]) -> dict[str, str]:
    folders = {}
    for word in words:
        name, _, folder = word.partition("=")
        if not folder:
            raise ValueError(f"{option} takes {name}=FOLDER, not {word!r}")
        folders[name] = folder
    return folders
