"""Commands that take an experiment file: run, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion.cli.main import AsJson, app, err

if TYPE_CHECKING:
    from apportion.study.experiment import Experiment


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="An experiment file (TOML).", show_default=False)],
    runs: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints. \\[default: runs/NAME]")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the texts of its task, if not where the file says."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--model",
            help="Folder of its pretrained model, if not where the file says; the checkpoint that "
            "a comparison of runtimes is of.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Stages to run side by side, one process each.")] = 1,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Stages of the first so many seeds alone; the rest can follow later. "
            "\\[default: all]",
            min=1,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Stages of these methods alone, with commas, and of those that they come from. "
            "\\[default: all]",
        ),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            help="Of a comparison of runtimes, parts alone, with commas: times, switching and "
            "throughput need an idle machine, memory and answers do not. \\[default: all]",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="Where stages run: local, or ray for a cluster of Ray, each on a CPU."),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="The cluster of Ray, as host:port or auto. \\[default: one of this machine]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment file: train what has no records yet, measure, append to its records.

    Records go to results/NAME.jsonl beside the file. A stage whose records are there is not run
    again; a killed run goes on where it was. With --engine ray, stages are tasks of Ray, which
    need files that every machine of the cluster sees; records are the same. A file that compares
    runtimes trains nothing: it is run for one checkpoint after the other.
    """
    from apportion.cli.ray_jobs import check_engine
    from apportion.cli.running import results_of, run_plan
    from apportion.study.answers import read_answers
    from apportion.study.comparison import is_comparison
    from apportion.study.experiment import read_experiment
    from apportion.study.report.budget_tables import budget_table
    from apportion.study.report.claim_tables import goal_table
    from apportion.study.report.terminal import show

    if is_comparison(file):
        if weights is None or seeds is not None or methods is not None or jobs != 1:
            raise ValueError(
                f"{file.name} compares runtimes: it takes --model CHECKPOINT, "
                "no --seeds, --methods or --jobs"
            )
        _compare(file, weights, data=data, runs=runs, parts=parts, as_json=as_json)
        return
    if parts is not None:
        raise ValueError(f"--parts are of a comparison of runtimes, and {file.name} is none")
    plan = _asked(read_experiment(file, data, weights).of_seeds(seeds), methods)
    if check_engine(engine, address) and jobs != 1:
        raise ValueError("--jobs is for --engine local; Ray runs as many stages as it has CPUs")
    where = runs or Path("runs") / plan.name
    have = run_plan(plan, where, results_of(file), jobs, engine=engine, address=address)
    goals = goal_table(plan, have, answers=read_answers(plan.stages, results_of(file)))
    show([t for t in (goals, budget_table(plan, have)) if t.rows], as_json)


@app.command()
def report(
    file: Annotated[
        Path,
        typer.Argument(
            help="An experiment file, the folder of a training, or other records (.jsonl): of a "
            "server, of certificates, of forecasts, of jobs on Ray.",
            show_default=False,
        ),
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
    measured: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Of the folder of a training: first export it to int8, and measure that beside "
            "the dense model, in torch and as int8, and TF-IDF; some minutes.",
        ),
    ] = False,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="With --measure, texts without labels that it was not trained on: a CSV file, or "
            "one text per line. A thousand or more are certified.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report page of an experiment from its records, and print its tables.

    The folder of a training gets a page that says which budget to choose, once it was measured.
    """
    from apportion.cli.demo import report_run
    from apportion.cli.running import results_of
    from apportion.files import write_text
    from apportion.study import experiment, records
    from apportion.study.answers import read_answers
    from apportion.study.comparison import is_comparison, read_comparison
    from apportion.study.own_run import records_of
    from apportion.study.report.figures import study_figures
    from apportion.study.report.markdown import fill_files
    from apportion.study.report.page import write_page
    from apportion.study.report.peer_tables import comparison_tables
    from apportion.study.report.promise_tables import promise_tables
    from apportion.study.report.serving_tables import STUDY, serving_tables
    from apportion.study.report.study_tables import study_tables
    from apportion.study.report.terminal import show

    if measured or texts is not None or (file.is_dir() and records_of(file).is_file()):
        if not measured and texts is not None:
            raise ValueError("--texts are certified by --measure; add that")
        if page or into or figures:
            raise ValueError("--out, --fill and --figures are of experiments, not of measured runs")
        report_run(file, texts if measured else None, measured=measured, as_json=as_json)
        return
    file = file / "experiment.toml" if file.is_dir() else file
    if file.suffix == ".jsonl":
        have = records.read(file)
        of_study = {STUDY: serving_tables(have), **promise_tables(have)}
        # A file has records of one study; the others' tables would only say that there are none.
        written = {study: own for study, own in of_study.items() if any(one.note for one in own)}
        for study, own in written.items():
            fill_files(into or (), study, own)
        show([one for own in written.values() for one in own if one.note], as_json)
        return
    if is_comparison(file):
        comparison = read_comparison(file)
        tables = comparison_tables(comparison, records.read(results_of(file)))
        fill_files(into or (), comparison.name, tables)
        show([table for table in tables if table.rows], as_json)
        err.print("a comparison of runtimes has tables alone, no page", highlight=False)
        return
    plan = experiment.read_experiment(file)
    have = experiment.current(plan, records.read(results_of(file)))
    where = page or file.with_name("report.html")
    answers = read_answers(plan.stages, results_of(file))
    tables = study_tables(plan, have, answers=answers)
    write_page(plan, have, where, answers=answers)
    fill_files(into or (), plan.name, tables)
    if figures:
        for picture in study_figures(plan, have):
            write_text(figures / f"{plan.name}-{picture.name}.svg", picture.svg())
    show(tables, as_json)
    err.print(f"report: {where}", highlight=False)


def _asked(plan: Experiment, methods: str | None) -> Experiment:
    """The methods of a plan that were asked for."""
    if methods is None:
        return plan
    names = [name.strip() for name in methods.split(",")]
    there = list(dict.fromkeys(stage.method for stage in plan.stages))
    for name in names:
        if name not in there:
            raise ValueError(f"there is no method {name!r}; there are {', '.join(there)}")
    return plan.of_methods(names)


def _compare(
    file: Path,
    checkpoint: Path,
    *,
    data: Path | None,
    runs: Path | None,
    parts: str | None,
    as_json: bool,
) -> None:
    """Runs a comparison of runtimes for one checkpoint, and shows its tables."""
    from apportion.cli.running import results_of
    from apportion.study.comparison import PARTS, read_comparison, run_comparison
    from apportion.study.report.peer_tables import comparison_tables
    from apportion.study.report.terminal import show

    plan = read_comparison(file)

    def watch(part: str, done: int, total: int) -> None:
        if not done or done == total:
            err.print(f"{part}: {'begun' if not done else 'timed'}", highlight=False)

    have = run_comparison(
        plan,
        checkpoint,
        data=data,
        work=runs or Path("runs") / plan.name,
        results=results_of(file),
        parts=PARTS if parts is None else [name.strip() for name in parts.split(",")],
        watch=watch,
    )
    show([table for table in comparison_tables(plan, have) if table.rows], as_json)
