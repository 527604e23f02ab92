"""Commands that train and report: train, run, report."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion import driver, experiment, records
from apportion.backbones.hub import load_model, load_words, weights_files_digest
from apportion.checkpoint import save
from apportion.cli.app import AsJson, app, err
from apportion.progress import Bars
from apportion.report.figures import study_figures
from apportion.report.goals import goal_table
from apportion.report.markdown import fill
from apportion.report.page import write_page
from apportion.report.study import budget_table, study_tables
from apportion.report.terminal import show
from apportion.stages import produce
from apportion.tasks import SPLITS, Task
from apportion.tasks.text import Text


@app.command(
    epilog="[bold]apportion train --data reviews/ --out runs/mine[/] trains on reviews/train.csv, "
    "columns label and text. [bold]apportion train[/] alone is the demo."
)
def train(
    into: Annotated[
        Path, typer.Option("--out", help="Folder for the checkpoint, the records and the report.")
    ] = Path("runs/demo"),
    data: Annotated[
        str | None,
        typer.Option(
            help="Texts: a folder with train.csv (val.csv and test.csv if you have them), or the "
            "name of a dataset on the hub. Without it, the marked-token task.",
            show_default=False,
        ),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="A pretrained encoder to start from, with --data: a folder, a name on the hub, "
            "or minilm. Without it, an encoder of our own.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A column with the text; several are joined. \\[default: text]"),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column with the class. \\[default: label]")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens in a sequence. \\[default: 32, of texts 128]")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Training rows. \\[default: 4096, of texts all]")
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option(
            help="Validation rows, and as many test rows. \\[default: a quarter of the training "
            "rows; of texts the whole file, or a tenth where there is none]"
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Layers of the encoder. \\[default: 2, for texts 4]")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Attention heads in a layer. \\[default: 8, for texts 4]")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Width of the encoder. \\[default: 64]")
    ] = None,
    feedforward: Annotated[
        int | None,
        typer.Option(help="Feed-forward neurons in a layer. \\[default: 128, for texts 256]"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs of the dense warm start. \\[default: 12, for texts 3 to 40 "
            "by the number of rows]"
        ),
    ] = None,
    budgeted_epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs of budgeted training. \\[default: 6, for texts half of the dense ones]"
        ),
    ] = None,
    lam: Annotated[
        float | None, typer.Option(help="Weight of the cost. \\[default: 0.05, for texts 0.02]")
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="Weight of what is spent above the budget. \\[default: 4, for texts 2]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and budgets.")] = 7,
    data_seed: Annotated[int, typer.Option(help="Seed of the rows that are drawn.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train one checkpoint with a compute knob, on your texts or the marked-token task.

    Dense warm start, then budgeted training, then one epoch of hard-gate adaptation; then it is
    measured. Stopped or killed, the same command goes on where it was; when all is done, it only
    prints the table.
    """
    if not data and (text or label):
        raise ValueError("--text and --label name columns of texts; say where they are with --data")
    kind = ("pretrained" if pretrained else "text") if data else "marked"
    if pretrained and not data:
        raise ValueError("--model is a model of texts; say where those are with --data")
    if pretrained and any((layers, heads, hidden, feedforward)):
        raise ValueError("--model has its own layers, heads, hidden and feedforward sizes")
    given = {
        "length": length,
        "layers": layers,
        "heads": heads,
        "hidden": hidden,
        "feedforward": feedforward,
        "epochs": epochs,
        "budgeted_epochs": budgeted_epochs,
        "lam": lam,
        "beta": beta,
    }
    numbers: dict[str, Any] = {
        "seed": seed,
        "data_seed": data_seed,
        **_DEFAULTS[kind],
        **{name: value for name, value in given.items() if value is not None},
    }
    if data:
        spec = Text(
            data,
            length=numbers["length"],
            train=rows,
            validation=held_out,
            test=held_out,
            text=tuple(text or ("text",)),
            label=label or "label",
            seed=data_seed,
        )
        numbers |= _facts_of(spec)
        if pretrained:
            numbers["pretrained"] = _pretrained(pretrained, numbers["length"])
        # As many rows are seen as in the study on AG News; few rows are gone through more often.
        numbers.setdefault("epochs", min(40, max(3, round(_ROWS_SEEN / numbers["train"]))))
        numbers.setdefault("budgeted_epochs", (numbers["epochs"] + 1) // 2)
    else:
        rows = rows or 4096
        numbers |= {
            "rows": rows,
            "held_out": held_out or max(2, rows // 4),
            "distractors": max(1, numbers["length"] // 8),
        }
    template = resources.files("apportion") / f"train-{kind}.toml"
    toml = template.read_text(encoding="utf-8").format(**numbers)
    plan = experiment.parse_experiment(toml)
    file = into / "experiment.toml"
    records.write_text(file, toml)
    have = _run(plan, into / "stages", results_of(file), jobs=1)
    last = plan.stages[-1]
    checkpoint = produce(last, into / "stages")
    measured = [r for r in have if r["kind"] == "point" and r["stage"] == last.key]
    save(replace(checkpoint, notes={**checkpoint.notes, "measured": measured}), into / "checkpoint")
    page = into / "report.html"
    write_page(plan, have, page)
    show([budget_table(plan, have)], as_json)
    err.print(f"checkpoint: {into / 'checkpoint'}\nreport:     {page}", highlight=False)


_ROWS_SEEN = 80_000
_DEFAULTS = {
    "marked": {
        "length": 32,
        "layers": 2,
        "heads": 8,
        "hidden": 64,
        "feedforward": 128,
        "epochs": 12,
        "budgeted_epochs": 6,
        "lam": 0.05,
        "beta": 4.0,
    },
    "text": {
        "length": 128,
        "layers": 4,
        "heads": 4,
        "hidden": 64,
        "feedforward": 256,
        "lam": 0.02,
        "beta": 2.0,
    },
    "pretrained": {"length": 128, "epochs": 3, "budgeted_epochs": 2, "lam": 0.02, "beta": 2.0},
}


def _pretrained(name: str, length: int) -> str:
    """What the experiment file says of a pretrained model; reads it, so a bad one is found now."""
    load_words(name, length)
    load_model(name, ("a", "b"), seed=0)
    digest = weights_files_digest(name)
    return json.dumps(name) + (f"\ndigest = {json.dumps(digest)}" if digest else "")


def _facts_of(spec: Text) -> dict[str, Any]:
    """What the experiment file says of some texts; reads them, so bad ones are found now."""
    task = spec.build()
    return {
        "title": json.dumps(Path(spec.data).name or spec.data, ensure_ascii=False),
        "data": json.dumps(spec.data, ensure_ascii=False),
        "digest": json.dumps(task.spec["digest"]),
        "text": json.dumps(list(spec.text), ensure_ascii=False),
        "label": json.dumps(spec.label, ensure_ascii=False),
        "train": len(task.train),
        "validation": len(task.validation),
        "test": len(task.test),
    }


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
        typer.Option("--model", help="Folder of its pretrained model, if not where the file says."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Stages to run side by side, one process each.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run an experiment file: train what has no records yet, measure, append to its records.

    Records go to results/NAME.jsonl beside the file. A stage whose records are there is not run
    again; a killed run goes on where it was.
    """
    plan = experiment.read_experiment(file, data, weights)
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
    filled = {
        target: fill(target.read_text(encoding="utf-8"), plan.name, tables) for target in into or ()
    }
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
    if isinstance(plan.task, Text) and any(driver.unfinished(plan, records.read(results))):
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
