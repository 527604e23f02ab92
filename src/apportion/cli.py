"""The command line: parse, call, print. Data goes to stdout, progress and messages to stderr."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from apportion import __version__, driver, experiment, records
from apportion.benchmark import count_macs, count_parameters, time_budgets
from apportion.checkpoint import Checkpoint, load, read_manifest, save
from apportion.elastic import Elastic, plain_of
from apportion.evaluation import FORMS, SWEEP, Form, is_monotone
from apportion.evaluation import sweep as run_sweep
from apportion.progress import Bars
from apportion.report.markdown import fill
from apportion.report.page import write_page
from apportion.report.study import budget_table, goal_table, latency_table, study_tables
from apportion.report.tables import Table
from apportion.report.terminal import print_json, show
from apportion.stages import produce
from apportion.tasks import Task
from apportion.tasks.marked import Marked

app = typer.Typer(
    help="One transformer checkpoint, any compute budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)
err = Console(stderr=True)

Folder = Annotated[Path, typer.Argument(help="A checkpoint folder.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, not a table.")]
Budgets = Annotated[
    list[float] | None,
    typer.Option("--budget", "-b", help="A fraction in (0, 1]; may be given several times."),
]
Floor = Annotated[int, typer.Option(help="Units that every layer keeps at least.")]


# A path of the user's that does not lead where it should: a mistake like any other.
_WRONG_PATH = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


def main() -> NoReturn:
    """Runs the command; a user's mistake is one sentence and exit code 2, never a traceback."""
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("the command line runs as one process; to use several, call `fit`")
        app()
    except (ValueError, *_WRONG_PATH) as error:
        _fail(error, 2)
    except OSError as error:
        _fail(error, 1)
    sys.exit(0)


def _fail(error: Exception, code: int) -> NoReturn:
    if os.environ.get("APPORTION_DEBUG"):
        raise error
    err.print("apportion:", style="bold red", end=" ")
    # As it is: [task] in a message is a table's name, not a style.
    err.print(str(error), markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


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
    show(tables, as_json)
    err.print(f"report: {where}", highlight=False)


@app.command()
def inspect(
    checkpoint: Folder, budget: Budgets = None, floor: Floor = 0, as_json: AsJson = False
) -> None:
    """Show what a checkpoint holds, and which units it keeps at each budget."""
    manifest = read_manifest(checkpoint)
    loaded = load(checkpoint)
    facts: dict[str, Any] = {
        "kind": loaded.kind,
        "model": manifest["model"],
        "parameters": count_parameters(plain_of(loaded.model)),
        "macs": count_macs(plain_of(loaded.model), manifest["model"]["config"]["length"]),
        "recipes": [recipe["name"] for recipe in loaded.notes.get("recipes", [])],
        "task": loaded.notes.get("task"),
        "kept": loaded.kept and loaded.kept.to_dict(),
    }
    budgets: list[dict[str, Any]] = []
    if budget:
        _needs_gates(loaded.model, checkpoint)
    if isinstance(loaded.model, Elastic):
        for asked in budget or (0.25, 0.5, 0.75, 1.0):
            allocation = loaded.model.allocation(asked, floor)
            budgets.append(
                {
                    "budget": asked,
                    "cost_soft": round(float(loaded.model.cost(asked).detach()), 4),
                    "cost_hard": round(allocation.cost, 4),
                    "kept": allocation.to_dict(),
                }
            )
    if as_json:
        print_json({**facts, "budgets": budgets})
        return
    config = manifest["model"]["config"]
    typer.echo(
        f"{loaded.kind} checkpoint: {config['layers']} layers x {config['heads']} heads, hidden "
        f"{config['hidden']}, {facts['parameters']:,} parameters, {facts['macs']:,} MACs at length "
        f"{config['length']}",
    )
    typer.echo(f"recipes: {' → '.join(facts['recipes']) or 'none'}")
    table = Table(
        "kept",
        "Kept at each budget",
        ("budget", "cost soft", "cost hard", "layer", "kept"),
        tuple(
            (
                f"{b['budget']:.2f}",
                f"{b['cost_soft']:.3f}",
                f"{b['cost_hard']:.3f}",
                layer,
                _units(k),
            )
            for b in budgets
            for layer, k in b["kept"].items()
        )
        or tuple(("", "", "", layer, _units(k)) for layer, k in (facts["kept"] or {}).items()),
    )
    if table.rows:
        show([table])


@app.command()
def sweep(
    checkpoint: Folder,
    budget: Budgets = None,
    form: Annotated[
        list[str] | None, typer.Option(help="soft, hard or cut; may be given several times.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    floor: Floor = 0,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint at many budgets (19 of them, 0.10 to 1.00, if none is given)."""
    model, task = _elastic(checkpoint)
    forms: list[Form] = []
    for name in form or ["soft", "hard"]:
        if name not in FORMS:
            raise ValueError(f"a form is one of {', '.join(FORMS)}, not {name!r}")
        forms.append(name)
    budgets = tuple(budget or SWEEP)
    points = []
    with Progress(console=err, transient=True) as progress:
        for asked in progress.track(budgets, description="budgets"):
            points += run_sweep(model, task.split(split), [asked], forms, floor)
    points.sort(key=lambda point: (forms.index(point.form), point.budget))
    if as_json:
        rows = [{"budget": p.budget, "form": p.form, **asdict(p.outcome)} for p in points]
        print_json({"split": split, "points": rows, "monotone": is_monotone(points)})
        return
    table = Table(
        "sweep",
        f"Sweep on {split}",
        ("form", "budget", "cost", "accuracy", "loss"),
        tuple(
            (
                p.form,
                f"{p.budget:.2f}",
                f"{p.outcome.cost:.3f}",
                f"{100 * p.outcome.accuracy:.2f}",
                f"{p.outcome.loss:.4f}",
            )
            for p in points
        ),
        f"Cost is {'' if is_monotone(points) else 'not '}monotone in the budget.",
    )
    show([table])


@app.command()
def cut(
    checkpoint: Folder,
    budget: Annotated[float, typer.Option("--budget", "-b", help="A fraction in (0, 1].")],
    into: Annotated[Path, typer.Option("--out", help="Folder for the smaller checkpoint.")],
    floor: Floor = 0,
    as_json: AsJson = False,
) -> None:
    """Write the smaller plain model that a budget buys."""
    if into.resolve() == checkpoint.resolve():
        raise ValueError("--out is the checkpoint itself; choose another folder")
    loaded = load(checkpoint)
    model = _needs_gates(loaded.model, checkpoint)
    kept = model.allocation(budget, floor)
    smaller = model.cut(budget, floor)
    notes = {**loaded.notes, "cut": {"budget": budget, "floor": floor, "cost": kept.cost}}
    save(Checkpoint(smaller, notes, kept), into)
    facts: dict[str, Any] = {
        "budget": budget,
        "cost": kept.cost,
        "units": kept.count,
        "parameters": count_parameters(smaller),
        "parameters_before": count_parameters(model.plain()),
        "macs": count_macs(smaller, model.length),
        "macs_before": count_macs(model.plain(), model.length),
        "out": str(into),
    }
    if as_json:
        print_json(facts)
        return
    typer.echo(
        f"kept {kept.count} of {len(model.units)} units (cost {kept.cost:.3f}): "
        f"{facts['parameters_before']:,} → {facts['parameters']:,} parameters, "
        f"{facts['macs_before']:,} → {facts['macs']:,} MACs at length {model.length}, "
        f"so at most {facts['macs_before'] / facts['macs']:.2f}x faster",
    )


@app.command()
def bench(
    checkpoint: Folder,
    budget: Budgets = None,
    batch: Annotated[int, typer.Option(help="Rows in a call.")] = 64,
    repeats: Annotated[int, typer.Option(help="Timed calls of each arm.")] = 41,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Time a checkpoint at each budget: uncut, soft, hard mask and cut, taking turns.

    Speed-ups are medians of paired ratios with a 95 % interval, beside the bound by
    multiply-accumulates. Run nothing else meanwhile.
    """
    model, task = _elastic(checkpoint)
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    inputs, _ = task.test.batch(torch.arange(min(batch, len(task.test))))
    with Progress(console=err, transient=True) as progress:
        bar = progress.add_task("repeats", total=None)
        measured = time_budgets(
            model,
            inputs,
            budget or (0.25, 0.5, 0.75),
            repeats,
            threads,
            progress=lambda done, of: progress.update(bar, completed=done, total=of),
        )
    measured = [{**record, **records.provenance()} for record in measured]
    if as_json:
        print_json(measured)
    else:
        show([latency_table(measured)])


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


def _elastic(checkpoint: Path) -> tuple[Elastic, Task]:
    loaded = load(checkpoint)
    model = _needs_gates(loaded.model, checkpoint)
    spec = dict(loaded.notes.get("task") or {})
    if spec.pop("kind", None) != "marked":
        raise ValueError(f"{checkpoint} does not say which task it was trained on")
    try:
        return model, Marked(**spec).build()
    except TypeError as error:
        raise ValueError(f"the task that {checkpoint} names can't be built: {error}") from None


def _needs_gates(model: torch.nn.Module, checkpoint: Path) -> Elastic:
    if not isinstance(model, Elastic):
        raise ValueError(f"{checkpoint} has no gates, so it has no budgets; give an elastic one")
    return model


def _units(kept: dict[str, list[int]]) -> str:
    return ", ".join(f"{kind} {' '.join(map(str, i)) or 'none'}" for kind, i in kept.items())


if __name__ == "__main__":
    main()
