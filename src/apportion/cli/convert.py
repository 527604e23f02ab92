"""The command that does without training: convert."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion.cli.main import AsJson, app, err

if TYPE_CHECKING:
    from apportion.data.sources import Source

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
    from apportion.cli.running import (
        check_units,
        facts_of_model,
        facts_of_texts,
        make,
        read_template,
    )
    from apportion.data.sources import read_source
    from apportion.data.text import Text, classes_of

    check_units(units)
    columns = tuple(text or ("text",))
    source = read_source(data, columns, label)
    train_rows, validation, test = _at_most(source, rows, held_out)
    spec = Text(
        data,
        length=length,
        train=train_rows,
        validation=validation,
        test=test,
        text=columns,
        label=label,
        seed=data_seed,
    )
    numbers = {
        "length": length,
        "units": units,
        "data_seed": data_seed,
        **facts_of_texts(spec),
        "pretrained": facts_of_model(model, length, classes_of(source)),
    }
    make(read_template("convert").format(**numbers), into, as_json)


def _at_most(source: Source, rows: int, held_out: int) -> tuple[int, int, int]:
    """As many training, validation and test rows as asked for, or as there are."""
    left = len(source.train.rows)
    taken = []
    for part in (source.validation, source.test):
        taken.append(min(held_out, len(part.rows) if part else max(2, left // 10)))
        left -= 0 if part else taken[-1]
    if source.test is None:
        err.print(
            "there are no test rows: budgets are measured on training rows, and if the model was "
            "trained on those, it does better on them than it would on others",
            highlight=False,
        )
    return min(rows, left), taken[0], taken[1]
