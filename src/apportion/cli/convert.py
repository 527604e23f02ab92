"""The command that does without labels: convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.main import AsJson, app, err

ROWS = 4000  # rows of a few tokens need that many for the repair


@app.command(
    epilog="[bold]apportion convert my-model/ --data reviews/ --out runs/mine[/] takes a model of "
    "Transformers that was fine-tuned on reviews/train.csv. [bold]apportion convert my-model/ "
    "--texts reviews.txt[/] needs no labels."
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
        str | None,
        typer.Option(
            help="Some of its texts with their classes, to measure accuracy too: a folder with "
            "train.csv (and test.csv if you have it), or the name of a dataset on the hub.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Some of its texts alone: a CSV file, or one with a text in each line. A thousand "
            "or more are best.",
            show_default=False,
        ),
    ] = None,
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
            help="Rows to convert with, at most: drawn, each text once. The repair is fitted to as "
            "many of them as it takes, which is said.",
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
    agreement: Annotated[
        float,
        typer.Option(
            help="The share of texts that a budget must answer as the whole model, to be in the "
            "checkpoint's range."
        ),
    ] = 0.95,
    tune: Annotated[
        int,
        typer.Option(
            help="Views of the texts from which all budgets learn what the model itself answers, "
            "after the repair, up to four times as many if texts are short; 0 for none.",
            min=0,
        ),
    ] = 4000,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="About how long search, repair and tuning may take together. "
            "\\[default: as long as they take]",
            show_default=False,
        ),
    ] = None,
    data_seed: Annotated[int, typer.Option(help="Seed of the rows that are drawn.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Give a fine-tuned model a compute knob, without labels.

    Heads and feed-forward neurons are put in one order: by what the model's own answers say of
    them, then by a search that keeps the answers of small budgets near those of the whole model.
    The output of each layer is repaired for all budgets at once, by least squares; then all
    budgets learn what the whole model answers to views of the texts (--tune). Both go as far as
    held-out texts say that it helps. Other texts say which budgets can be vouched for: a smaller
    one is refused. Some minutes for a small encoder.
    """
    if (data is None) == (texts is None):
        raise ValueError("give --data, texts with their classes, or --texts, a file without them")
    from apportion.cli.running import check_units, make
    from apportion.study.presets import conversion_preset

    check_units(units)
    if texts is not None:
        _convert_texts(
            model,
            texts,
            into,
            text or ["text"],
            length,
            rows,
            units,
            agreement,
            tune,
            seconds,
            data_seed,
            as_json,
        )
        return
    assert data is not None
    preset = conversion_preset(
        model,
        data,
        text=text or ("text",),
        label=label,
        length=length,
        rows=rows,
        held_out=held_out,
        units=units,
        agreement=agreement,
        tune=tune,
        seconds=seconds,
        data_seed=data_seed,
    )
    make(preset, into, as_json)


def _convert_texts(
    name: str,
    file: Path,
    into: Path,
    columns: list[str],
    length: int,
    rows: int,
    units: str,
    agreement: float,
    tune: int,
    seconds: float | None,
    data_seed: int,
    as_json: bool,
) -> None:
    from apportion.cli.running import made_in_words
    from apportion.data.unlabelled import choose, read_texts
    from apportion.study.report.terminal import show
    from apportion.study.text_conversion import agreement_tables, convert_texts
    from apportion.training.progress import training_bar

    found = read_texts(file, columns)
    if found.had_labels:
        err.print(f"{file.name} has labels; they are not looked at (--data measures accuracy)")
    # Drawn, and not the first of them: files are often sorted by class.
    drawn = choose(found, rows, seed=data_seed, held_out=(), trained=())
    with training_bar(err) as bar:
        made = convert_texts(
            name,
            drawn.texts,
            into=into,
            length=length,
            units=units,
            agreement=agreement,
            tune=tune,
            seconds=seconds,
            progress=bar,
        )
    show(agreement_tables(made.facts["vouched"]), as_json)
    err.print(made_in_words(made.facts), highlight=False)
    err.print(f"checkpoint: {into / 'checkpoint'}", highlight=False)
