"""Commands that train and report: train, run, report."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion import driver, experiment, records
from apportion.checkpoint import save
from apportion.cli.app import AsJson, app, err
from apportion.progress import Bars
from apportion.report.figures import study_figures
from apportion.report.markdown import fill
from apportion.report.page import write_page
from apportion.report.study import budget_table, goal_table, study_tables
from apportion.report.terminal import show
from apportion.stages import produce


@app.command()
def train(
    into: Annotated[
        Path, typer.Option("--out", help="Folder for the checkpoint, the records and the report.")
    ] = Path("runs/demo"),
    length: Annotated[int, typer.Option(help="Tokens in a sequence.")] = 32,
    rows: Annotated[int, typer.Option(help="Training rows; a quarter as many to validate.")] = 4096,
    layers: Annotated[int, typer.Option(help="Layers of the encoder.")] = 2,
    heads: Annotated[int, typer.Option(help="Attention heads in a layer.")] = 8,
    hidden: Annotated[int, typer.Option(help="Width of the encoder.")] = 64,
    feedforward: Annotated[int, typer.Option(help="Feed-forward neurons in a layer.")] = 128,
    epochs: Annotated[int, typer.Option(help="Epochs of the dense warm start.")] = 12,
    budgeted_epochs: Annotated[int, typer.Option(help="Epochs of budgeted training.")] = 6,
    lam: Annotated[float, typer.Option(help="Weight of the cost.")] = 0.05,
    beta: Annotated[float, typer.Option(help="Weight of what is spent above the budget.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and budgets.")] = 7,
    data_seed: Annotated[int, typer.Option(help="Seed of the generated rows.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train one checkpoint with a compute knob on the marked-token task, and measure it.

    Dense warm start, then budgeted training, then one epoch of hard-gate adaptation. Stopped or
    killed, the same command goes on where it was; when all is done, it only prints the table.
    """
    file = into / "experiment.toml"
    template = resources.files("apportion") / "train.toml"
    text = template.read_text(encoding="utf-8").format(
        length=length,
        distractors=max(1, length // 8),
        rows=rows,
        held_out=max(2, rows // 4),
        layers=layers,
        heads=heads,
        hidden=hidden,
        feedforward=feedforward,
        epochs=epochs,
        budgeted_epochs=budgeted_epochs,
        lam=lam,
        beta=beta,
        seed=seed,
        data_seed=data_seed,
    )
    plan = experiment.parse_experiment(text)
    records.write_text(file, text)
    have = _run(plan, into / "stages", results_of(file), jobs=1)
    save(produce(plan.stages[-1], into / "stages"), into / "checkpoint")
    page = into / "report.html"
    write_page(plan, have, page)
    show([budget_table(plan, have)], as_json)
    err.print(f"checkpoint: {into / 'checkpoint'}\nreport:     {page}", highlight=False)


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="An experiment file (TOML).", show_default=False)],
    runs: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints. \\[default: runs/NAME]")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Stages to run side by side, one process each.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run an experiment file: train what has no records yet, measure, append to its records.

    Records go to results/NAME.jsonl beside the file. A stage whose records are there is not run
    again; a killed run goes on where it was.
    """
    plan = experiment.read_experiment(file)
    have = _run(plan, runs or Path("runs") / plan.name, results_of(file), jobs)
    show([t for t in (goal_table(plan, have), budget_table(plan, have)) if t.rows], as_json)


@app.command()
def report(
    file: Annotated[
        Path,
        typer.Argument(help="An experiment file, or the folder of a training.", show_default=False),
    ],
    page: Annotated[
        Path | None, typer.Option("--out", help="The page. \\[default: report.html beside FILE]")
    ] = None,
    into: Annotated[
        list[Path] | None,
        typer.Option("--fill", help="A Markdown file whose marked tables are written anew."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures as SVG files.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report page of an experiment from its records, and print its tables."""
    file = file / "experiment.toml" if file.is_dir() else file
    plan = experiment.read_experiment(file)
    have = experiment.current(plan, records.read(results_of(file)))
    where = page or file.with_name("report.html")
    tables = study_tables(plan, have)
    filled = {target: fill(target.read_text(encoding="utf-8"), tables) for target in into or ()}
    write_page(plan, have, where)
    for target, text in filled.items():
        records.write_text(target, text)
    if figures:
        for picture in study_figures(plan, have):
            records.write_text(figures / f"{plan.name}-{picture.name}.svg", picture.svg())
    show(tables, as_json)
    err.print(f"report: {where}", highlight=False)


def results_of(file: Path) -> Path:
    """Where the records of an experiment file are."""
    return file.parent / "results" / f"{file.stem}.jsonl"


def _run(plan: experiment.Experiment, runs: Path, results: Path, jobs: int) -> list[dict[str, Any]]:
    try:
        with Bars(err) as bars:
            return driver.run(plan, runs, results, bars, jobs)
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None
