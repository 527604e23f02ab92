"""The command that trains: train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.cli.main import AsJson, app


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
            "by the number of rows, with --model 3]"
        ),
    ] = None,
    budgeted_epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs of budgeted training. \\[default: 6, for texts half of the dense ones, "
            "with --model 2]"
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
        str,
        typer.Option(
            help="What a budget switches off: heads, as in the paper, or all: heads and "
            "feed-forward blocks, so that a budget is a share of all that layers compute."
        ),
    ] = "heads",
    seed: Annotated[int, typer.Option(help="Seed of weights, order and budgets.")] = 7,
    data_seed: Annotated[int, typer.Option(help="Seed of the rows that are drawn.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train one checkpoint with a compute knob, on your texts or the marked-token task.

    Dense warm start, then budgeted training, then one epoch of hard-gate adaptation; with --units
    all, units are put in one order and trained at several budgets in each step. Then it is
    measured. Stopped or killed, the same command goes on where it was; when all is done, it only
    prints the table.
    """
    from apportion.cli.running import (
        check_units,
        facts_of_model,
        facts_of_texts,
        make,
        read_template,
    )
    from apportion.data.text import Text
    from apportion.study.experiment import BUDGETS
    from apportion.training.recipes import recipe

    if not data and (text or label):
        raise ValueError("--text and --label name columns of texts; say where they are with --data")
    kind = ("pretrained" if pretrained else "text") if data else "marked"
    if pretrained and not data:
        raise ValueError("--model is a model of texts; say where those are with --data")
    if pretrained and any(size is not None for size in (layers, heads, hidden, feedforward)):
        raise ValueError("--model has its own layers, heads, hidden and feedforward sizes")
    if units == "all" and (lam is not None or beta is not None):
        raise ValueError(
            "--lam and --beta weigh the cost of gates; with --units all there are none"
        )
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
        "units": check_units(units),
        "budgets": list(BUDGETS[units]),
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
        numbers |= facts_of_texts(spec)
        if pretrained:
            numbers["pretrained"] = facts_of_model(pretrained, numbers["length"])
            numbers.setdefault("epochs", recipe("dense-pretrained").epochs)
            numbers.setdefault("budgeted_epochs", recipe("nested-pretrained").epochs)
        # As many rows are seen as in the study on AG News; few rows are gone through more often.
        numbers.setdefault("epochs", min(40, max(3, round(_ROWS_SEEN / numbers["train"]))))
        numbers.setdefault("budgeted_epochs", (numbers["epochs"] + 1) // 2)
    else:
        rows = 4096 if rows is None else rows
        numbers |= {
            "rows": rows,
            "held_out": max(2, rows // 4) if held_out is None else held_out,
            "distractors": max(1, numbers["length"] // 8),
        }
    template = read_template(f"train-{kind}")
    if units == "all":
        # The same warm start; one order of all units takes the place of the gates of heads.
        task_and_dense = "[[stage]]".join(template.split("[[stage]]")[:2])
        nested = "train-nested-pretrained" if pretrained else "train-nested"
        template = task_and_dense + read_template(nested)
    make(template.format(**numbers), into, as_json)


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
        "word_dropout": 0.0,  # its tokens are no words
    },
    "text": {
        "length": 128,
        "layers": 4,
        "heads": 4,
        "hidden": 64,
        "feedforward": 256,
        "lam": 0.02,
        "beta": 2.0,
        "word_dropout": 0.3,
    },
    "pretrained": {
        "length": 128,
        "lam": 0.02,
        "beta": 2.0,
    },
}
