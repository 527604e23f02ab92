"""The command that does without training: convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.main import AsJson, app

ROWS = 4000  # 1,000 of them are scored; rows of a few tokens need that many for the repair


@app.command(
    epilog="[bold]apportion convert my-model/ --data reviews/ --out runs/mine[/] takes a model of "
    "Transformers that was fine-tuned on reviews/train.csv."
)
def convert(
    model: Annotated[
        str,
        typer.Argument(
            help="A fine-tuned classifier of Transformers: a folder, or a name on the hub.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="Some of its texts: a folder with train.csv (and test.csv if you have it), or the "
            "name of a dataset on the hub.",
            show_default=False,
        ),
    ],
    into: Annotated[
        Path, typer.Option("--out", help="Folder for the checkpoint, the records and the report.")
    ] = Path("runs/converted"),
    text: Annotated[
        list[str] | None,
        typer.Option(help="A column with the text; several are joined. \\[default: text]"),
    ] = None,
    label: Annotated[str, typer.Option(help="The column with the class.")] = "label",
    length: Annotated[int, typer.Option(help="Tokens in a sequence.")] = 128,
    rows: Annotated[
        int,
        typer.Option(
            help="Training rows, at most: units are scored on 1,000 of them, and repaired on as "
            "many as it takes, which is said.",
            min=2,
        ),
    ] = ROWS,
    held_out: Annotated[
        int, typer.Option(help="Test rows that the budgets are measured on, at most.", min=2)
    ] = 500,
    units: Annotated[
        str,
        typer.Option(help="What a budget switches off: heads, or all: feed-forward blocks too."),
    ] = "all",
    data_seed: Annotated[int, typer.Option(help="Seed of the rows that are drawn.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Give a fine-tuned model a compute knob without training it.

    Heads and feed-forward neurons are put in the order of what the loss says of them, and the
    output of each layer is repaired for all budgets at once, by least squares on training rows, as
    far as held-out rows say that it helps and the whole model answers as before. Some minutes for
    a small encoder; then it is measured at each budget.
    """
    from apportion.cli.running import check_units, make
    from apportion.study.presets import conversion_preset

    preset = conversion_preset(
        model,
        data,
        text=text or ("text",),
        label=label,
        length=length,
        rows=rows,
        held_out=held_out,
        units=check_units(units),
        data_seed=data_seed,
    )
    make(preset, into, as_json)
