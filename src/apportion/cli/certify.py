"""The command that makes a promise about a cascade: certify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion.cli.cascading import Once
from apportion.cli.main import AsJson, app
from apportion.cli.streams import say

if TYPE_CHECKING:
    from apportion.serving.guarantees.certificate import Certificate
    from apportion.serving.runtime.session import Runtime
    from apportion.study.report.table import Table

_PICTURES = (".svg", ".png")
FILE, READING = "certificate.json", "reading.json"


@app.command(
    epilog="[bold]apportion certify runs/mine/onnx --texts texts.csv[/] writes "
    "runs/mine/onnx/certificate.json; "
    "[bold]apportion predict runs/mine/onnx new.csv --certificate "
    "runs/mine/onnx/certificate.json[/] uses it."
)
def certify(
    folder: Annotated[
        Path,
        typer.Argument(help="A checkpoint, or a folder that export wrote.", show_default=False),
    ],
    texts: Annotated[
        Path,
        typer.Option(
            help="Texts like those to come, without labels: a CSV file, or one text per line."
        ),
    ],
    disagree_at_most: Annotated[
        float, typer.Option(help="Share of the answers that may differ from the whole model's.")
    ] = 0.01,
    confidence: Annotated[float, typer.Option(help="Probability that the promise holds.")] = 0.95,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--text", help="A column with the text; several are joined. \\[default: as trained]"
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(help="Texts that are used at most: a third tunes, the others test.")
    ] = 3000,
    out: Annotated[
        Path | None,
        typer.Option(help="The certificate. \\[default: certificate.json in the folder]"),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Risk against speed, as .svg or .png. \\[default: beside the certificate, .svg]"
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="Certify reading in place of budgets: documents of up to so many tokens are read "
            "window by window, until the answer is sure; all windows are what it must agree with."
        ),
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(
            help="With --length, tokens that windows share. \\[default: an eighth of a window]"
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option("--budget", "-b", help="With --length, the budget of each window.")
    ] = 1.0,
    batch: Annotated[int, typer.Option(help="Rows in a call of the model.")] = 32,
    threads: Annotated[int, typer.Option(help="Threads of torch or ONNX Runtime.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the split into tuning and testing texts.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Certify how often small budgets may answer otherwise than the whole model.

    A text ends at the first budget that is sure of it. How sure it has to be is tuned on a third
    of the texts; the others, never looked at before, test that at most so many answers differ from
    the whole model's. No labels are needed. The promise is for texts like these.
    """
    from apportion.files import write_bytes, write_text
    from apportion.serving.guarantees.certifying import certify as make_certificate
    from apportion.serving.guarantees.guarantee import check_promise
    from apportion.serving.runtime.session import Runtime
    from apportion.study.report.terminal import print_json, show

    check_promise(disagree_at_most, confidence)
    if rows < 1 or batch < 1:
        raise ValueError(f"--rows and --batch are 1 at least, not {rows} and {batch}")
    if out is not None and out.suffix in _PICTURES:
        raise ValueError(f"--out is the certificate; {out.name} is a --figure by its name")
    if texts.suffix.lower() == ".parquet":
        raise ValueError("the texts are CSV, or one per line, not Parquet")
    if length is not None:
        from apportion.cli.documents import certify_windows

        runtime = Runtime(folder, threads=threads)
        made = certify_windows(
            runtime,
            _texts(texts, column, runtime),
            out=folder / READING if out is None else out,
            length=length,
            overlap=overlap,
            budget=budget,
            disagree_at_most=disagree_at_most,
            confidence=confidence,
            rows=rows,
            batch=batch,
            seed=seed,
        )
        if as_json:
            print_json(made.to_dict())
        return
    if overlap is not None or budget != 1.0:
        raise ValueError("--overlap and --budget are of windows; say how long with --length")
    from apportion.study.report.certificate_figure import draw_path  # slow to import

    out = folder / FILE if out is None else out
    figure = out.with_suffix(".svg") if figure is None else figure
    if figure.suffix not in _PICTURES:
        raise ValueError(f"a figure is a file of .svg or .png, not {figure.name}")
    runtime = Runtime(folder, threads=threads)
    certificate = make_certificate(
        runtime,
        _texts(texts, column, runtime),
        disagree_at_most=disagree_at_most,
        confidence=confidence,
        rows=rows,
        batch=batch,
        threads=threads,
        seed=seed,
        progress=Once(),
    )
    certificate.save(out)
    picture = draw_path(certificate)
    if figure.suffix == ".svg":
        write_text(figure, picture.svg())
    else:
        write_bytes(figure, picture.png())
    if as_json:
        print_json(certificate.to_dict())
    else:
        show([bought(certificate)])
    say(f"{out} and {figure}")


def bought(certificate: Certificate) -> Table:
    """What a certificate buys, for people."""
    from apportion.study.report.table import Table

    promised, sure = certificate.disagree_at_most, certificate.confidence
    needed = [
        *("–" if least is None else f"{least:.4f}" for least in certificate.thresholds),
        "0",
    ]
    rows = tuple(
        (f"{level:g}", f"{100 * share:.1f} %", least)
        for level, share, least in zip(certificate.levels, certificate.ends, needed, strict=True)
    )
    if not certificate.certified:
        said = "No cascade could be certified, so the whole model answers every text."
    else:
        said = (
            f"At most {100 * promised:g} % of the answers differ from the whole model's, with "
            f"{100 * sure:g} % confidence, for different texts like these. "
        )
        said += (
            f"{certificate.disagreements} of {certificate.rows:,} test rows differed; bound "
            f"{100 * certificate.bound:.2f} %. Mean cost {certificate.cost:.3f}. "
            f"{certificate.rows_per_second:,.0f} rows/s, {certificate.speed:.2f}x the whole "
            f"model's (threads: {certificate.threads}, batches of {certificate.batch})."
        )
    columns = ("budget", "texts that end there", "margin needed")
    return Table("certificate", "What was bought", columns, rows, said)


def _texts(file: Path, columns: list[str] | None, runtime: Runtime) -> list[str]:
    """The texts of a file; rows that can't be read are counted."""
    from apportion.data.rows import BadRow, Row, open_text, read_csv, read_lines

    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    wanted = columns or (runtime.facts.get("task") or {}).get("text", ["text"])
    with open_text(file) as stream:
        is_csv = file.suffix.lower() == ".csv"
        read = read_csv(stream, file.name, wanted, None) if is_csv else read_lines(stream)
        found: list[Row | BadRow] = list(read)
    texts = [row.text for row in found if isinstance(row, Row)]
    if len(texts) < len(found):
        say(f"{len(found) - len(texts):,} rows of {file.name} could not be read")
    return texts
