"""The command that writes one ONNX file: export."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli.main import AsJson, app, err

if TYPE_CHECKING:
    from apportion.elastic.checkpoint import Checkpoint


@app.command(
    epilog="[bold]apportion export runs/mine/checkpoint --out runs/mine/onnx --int8[/] writes "
    "model.onnx, which takes its budget as an input: "
    "[bold]apportion.Runtime('runs/mine/onnx').predict(texts, budget=0.25)[/]."
)
def export(
    checkpoint: Annotated[Path, typer.Argument(help="A nested checkpoint.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the file and its tokenizer.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Sites compute in int8, by scales taken from texts.")
    ] = False,
    levels: Annotated[
        str | None,
        typer.Option(
            help="Budgets that the file can run at, as 0.25,0.5,1. \\[default: 0.125, 0.25, 0.375, "
            "0.5, 0.75 and 1, inside the checkpoint's range]",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Texts for the scales and the check: a CSV file, or a file with one per line. "
            "\\[default: training rows of the checkpoint's data, if they are there]",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="What int8 weights are for: vnni (8 bits) or any processor (7 bits). "
            "\\[default: this machine]",
            show_default=False,
        ),
    ] = None,
    scales: Annotated[
        str,
        typer.Option(
            help="static: fixed by the texts, so that a row's answer does not depend on its batch; "
            "dynamic: taken anew from each batch."
        ),
    ] = "static",
    as_json: AsJson = False,
) -> None:
    """Write a nested checkpoint as one ONNX file that takes its budget as an input.

    All levels share one set of weights. The file is run by ONNX Runtime, without torch; at every
    level it is checked against the checkpoint before it takes its place.
    """
    from apportion.elastic.checkpoint import load
    from apportion.serving.runtime.exporting import export as write_export
    from apportion.study.report.table import Table
    from apportion.study.report.terminal import print_json, show

    loaded = load(checkpoint)
    given = _texts(loaded, texts)
    if int8 and not given:
        raise ValueError(
            "int8 takes its scales from texts, and the checkpoint's data is not in a folder here: "
            "give some with --texts FILE"
        )
    facts = write_export(
        loaded,
        out,
        texts=given,
        levels=None if levels is None else _numbers(levels),
        int8=int8,
        target=target,
        scales=scales,
    )
    checked: dict[str, Any] = facts["checked"]
    if min(checked["agreements"]) < _POOR:
        err.print(
            f"at one level only {100 * min(checked['agreements']):.0f} % of the labels are the "
            "checkpoint's: is this processor the --target of the file, and are the texts like "
            "those that it will read?",
            soft_wrap=True,
            highlight=False,
        )
    if as_json:
        print_json(facts)
        return
    columns = ("differences", "agreements", "changed")
    table = Table(
        "export",
        f"{out}: {facts['files']['model.onnx']['bytes'] / 1e6:.1f} MB, {facts['precision']}",
        ("level", "cost", "largest difference of logits", "same label", "changed by its batch"),
        tuple(
            (f"{level:g}", f"{cost:.3f}", f"{far:.2g}", f"{100 * same:.1f} %", f"{100 * by:.1f} %")
            for level, cost, far, same, by in zip(
                facts["levels"], facts["costs"], *(checked[name] for name in columns), strict=True
            )
        ),
        f"Beside the checkpoint's own answers, {checked['rows']} texts; changed by its batch: "
        "labels that are others alone than among 32 texts.",
    )
    show([table])


def _numbers(listed: str) -> list[float]:
    try:
        return [float(number) for number in listed.split(",")]
    except ValueError:
        raise ValueError(f"--levels are numbers with commas between them, not {listed!r}") from None


def _texts(loaded: Checkpoint, file: Path | None) -> list[str]:
    """Texts of a file, or training rows of what the checkpoint was trained on."""
    from apportion.data.rows import Row, open_text, read_csv, read_lines

    task = loaded.notes.get("task", {})
    columns = task.get("text", ["text"])
    if file is None:
        file = Path(str(task.get("data", ""))) / "train.csv"
        if not file.is_file():
            return []
    elif not file.is_file():
        raise ValueError(f"there is no file {file}")
    with open_text(file) as stream:
        is_csv = file.suffix.lower() == ".csv"
        rows = read_csv(stream, file.name, columns, None) if is_csv else read_lines(stream)
        found = [row.text for row in islice(rows, _MOST) if isinstance(row, Row)]
    if not found:
        raise ValueError(f"there is no text in {file}")
    return found


_MOST = 256  # texts that are read
_POOR = 0.9  # agreement with the checkpoint below which something is wrong
