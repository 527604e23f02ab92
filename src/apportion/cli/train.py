"""The command that trains: train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.main import AsJson, app


@app.command(
    epilog="[bold]apportion train --data reviews/ --out runs/mine[/] trains on reviews/train.csv, "
    "columns label and text. [bold]apportion train[/] alone is the paper's marked-token task."
)
def train(
    into: Annotated[
        Path, typer.Option("--out", help="Folder for the checkpoint, the records and the report.")
    ] = Path("runs/trained"),
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
            "by the number of rows, with --model 3 to 10]"
        ),
    ] = None,
    budgeted_epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs of budgeted training. \\[default: 6, for texts half of the dense ones, "
            "with --model 2, and more of few rows]"
        ),
    ] = None,
    lam: Annotated[
        float | None, typer.Option(help="Weight of the cost. \\[default: 0.05, for texts 0.02]")
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="Weight of what is spent above the budget. \\[default: 4, for texts 2]"),
    ] = None,
    units: Annotated[
        str | None,
        typer.Option(
            help="What a budget switches off: heads, as in the paper, or all: heads and "
            "feed-forward blocks, so that a budget is a share of all that layers compute. "
            "\\[default: all with --model, else heads]",
            show_default=False,
        ),
    ] = None,
    axis: Annotated[
        str,
        typer.Option(
            help="What a budget buys, with --model and --units all: width (units on all tokens), "
            "length (all units on fewer tokens) or both: the best pair, which is measured."
        ),
    ] = "width",
    unlabelled: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="More texts of the task, without labels, with --units all: budgets learn what "
            "the dense model answers to them. CSV with the text column, or .txt with one text per "
            "line; or the word train: the training rows that --rows leaves. "
            "\\[default: unlabelled.csv in the data folder, if there is one]",
            show_default=False,
        ),
    ] = None,
    unlabelled_rows: Annotated[
        int | None,
        typer.Option(help="Texts without labels, at most; 0 for none. \\[default: 8000]"),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="With --units all, about how long the search for an order and its repair may "
            "take. \\[default: as long as they take]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and budgets.")] = 7,
    data_seed: Annotated[int, typer.Option(help="Seed of the rows that are drawn.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train one checkpoint with a compute knob, on your texts or the marked-token task.

    Dense warm start, then budgeted training, then one epoch of hard-gate adaptation; with --units
    all, units are put in one order and learn from the dense model, each step at one budget. Then it
    is measured. Stopped or killed, the same command goes on where it was; when all is done, it only
    prints the table.
    """
    from apportion.cli.running import check_units, make
    from apportion.study.presets import training_preset

    sizes = {"layers": layers, "heads": heads, "hidden": hidden, "feedforward": feedforward}
    shape = {name: size for name, size in sizes.items() if size is not None}
    if not data and (text or label):
        raise ValueError("--text and --label name columns of texts; say where they are with --data")
    if pretrained and not data:
        raise ValueError("--model is a model of texts; say where those are with --data")
    if pretrained and shape:
        raise ValueError("--model has its own layers, heads, hidden and feedforward sizes")
    if units is None:  # what weighs the cost of gates is of heads
        units = "all" if pretrained and lam is None and beta is None else "heads"
    if not data and (unlabelled or unlabelled_rows):
        raise ValueError("--unlabelled gives more texts of a task; say where that is with --data")
    if units != "all" and (unlabelled or unlabelled_rows):
        raise ValueError("--unlabelled needs --units all: gates learn from rows with labels alone")
    if units == "all" and (lam is not None or beta is not None):
        raise ValueError(
            "--lam and --beta weigh the cost of gates; with --units all there are none"
        )
    if units != "all" and seconds is not None:
        raise ValueError("--seconds bound search and repair, which are of --units all")
    preset = training_preset(
        data,
        pretrained,
        text=text or ("text",),
        label=label or "label",
        length=length,
        rows=rows,
        held_out=held_out,
        shape=shape,
        epochs=epochs,
        budgeted_epochs=budgeted_epochs,
        lam=lam,
        beta=beta,
        units=check_units(units),
        axis=axis,
        unlabelled=unlabelled,
        unlabelled_rows=unlabelled_rows,
        seconds=seconds,
        seed=seed,
        data_seed=data_seed,
    )
    make(preset, into, as_json)
