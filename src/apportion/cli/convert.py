"""The command that does without training: convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.main import AsJson, app, err

ROWS = 4000  # 1,000 of them are scored; rows of a few tokens need that many for the repair


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
    agreement: Annotated[
        float,
        typer.Option(
            help="The share of texts that a budget must answer as the whole model, to be in the "
            "checkpoint's range."
        ),
    ] = 0.95,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="About how long the search for an order and its repair may take. "
            "\\[default: as long as they take]",
            show_default=False,
        ),
    ] = None,
    data_seed: Annotated[int, typer.Option(help="Seed of the rows that are drawn.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Give a fine-tuned model a compute knob without training it, and without labels.

    Heads and feed-forward neurons are put in one order: by what the model's own answers say of
    them, then by a search that keeps the answers of small budgets near those of the whole model.
    The output of each layer is repaired for all budgets at once, by least squares, as far as
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
            model, texts, into, text or ["text"], length, rows, units, agreement, seconds, as_json
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
    seconds: float | None,
    as_json: bool,
) -> None:
    """Converts a model with texts alone: no experiment, since there is no accuracy to measure."""
    import torch

    from apportion.cli.running import vouched_in_words
    from apportion.data.unlabelled import read_texts
    from apportion.elastic.checkpoint import Checkpoint, save
    from apportion.elastic.conversion import convert as convert_model
    from apportion.files import holding
    from apportion.models.hub import load_model, load_tokenizer, own_classes
    from apportion.study.records import provenance
    from apportion.study.report.table import Table
    from apportion.study.report.terminal import show
    from apportion.training.progress import telling, training_bar

    found = read_texts(file, columns)
    if found.had_labels:
        err.print(f"{file.name} has labels; they are not looked at (--data measures accuracy)")
    classes = own_classes(name)
    words = load_tokenizer(name, length)
    model = load_model(name, classes, 0, trained=True)
    with holding(into), training_bar(err) as bar:
        made = convert_model(
            model,
            found.texts[:rows],
            tokenizer=words,
            units=units,
            agreement=agreement,
            seconds=seconds,
            progress=telling(bar),
        )
        facts = {**made.facts, **provenance(threads=torch.get_num_threads())}
        notes = {"classes": classes, "method": "converted", "recipes": [], "training": facts}
        save(Checkpoint(made.model, notes, None, words), into / "checkpoint")
    told = made.facts["vouched"]
    budgets = [
        {
            "budget": budget,
            "answers as the whole model": f"{share:.1%}",
            "at least": f"{bound:.1%}",
            "in its range": "yes" if float(budget) >= told.get("from", 1.0) else "no",
        }
        for budget, (share, bound) in told.get("agreement", {}).items()
    ]
    title = f"Agreement with the whole model on {told['rows']:,} other texts"
    show([Table.of_rows("agreement", title, rows=budgets)] if budgets else [], as_json)
    err.print(vouched_in_words(told), highlight=False)
    err.print(f"checkpoint: {into / 'checkpoint'}", highlight=False)
