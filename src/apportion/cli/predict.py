"""The command that takes texts: predict."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from apportion.cli.main import app, err
from apportion.training.progress import Lines

if TYPE_CHECKING:
    from apportion.data.rows import BadRow
    from apportion.data.tokenizer import Tokenizer
    from apportion.serving.prediction import Answering, Prediction

_SHOWN = 20  # bad rows that are named one by one


@app.command(
    epilog="[bold]apportion predict runs/mine/checkpoint new.csv -b 0.5 --out labels.csv[/] "
    "or, a text a line, [bold]cat texts | apportion predict runs/mine/checkpoint[/]"
)
def predict(
    folder: Annotated[
        Path,
        typer.Argument(help="A checkpoint, or a folder that export wrote.", show_default=False),
    ],
    texts: Annotated[
        Path, typer.Argument(help="A CSV file, a file with a text a line, or - for stdin.")
    ] = Path("-"),
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            "-b",
            help="A fraction in (0, 1]; without it, all units work. An exported folder runs the "
            "highest of its levels that the budget pays for.",
        ),
    ] = None,
    within_ms: Annotated[
        float | None,
        typer.Option(
            help="Milliseconds that a call of --batch rows may take: each runs the highest level, "
            "up to --budget, that `apportion calibrate` lets expect to fit."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Stop where not even the lowest level fits into --within-ms."
        ),
    ] = False,
    soft: Annotated[
        bool, typer.Option("--soft", help="Soft gates in place of skipping: no faster.")
    ] = False,
    as_csv: Annotated[
        bool | None,
        typer.Option(
            "--csv/--lines",
            help="What the texts are. \\[default: CSV if the name ends in .csv, else lines]",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--text", help="A column with the text; several are joined. \\[default: as trained]"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A file for the predictions. \\[default: stdout]")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="csv or jsonl. \\[default: by the name of --out, else csv]"),
    ] = None,
    batch: Annotated[int, typer.Option(help="Rows in a call of the model.")] = 64,
    threads: Annotated[int, typer.Option(help="Threads of torch or ONNX Runtime.")] = 1,
) -> None:
    """Label texts at a budget: CSV or lines in, labels and probabilities out.

    Texts are read a few at a time, so a file of any size will do. A row that can't be read is
    named on stderr with its line and left out; the line of each row is in the output.
    """
    from apportion.data.rows import read_csv, read_lines
    from apportion.serving.prediction import CHUNK, FORMATS, lines_of
    from apportion.serving.prediction import predict as run_predict

    form = form or ("jsonl" if out and out.suffix in (".jsonl", ".json") else "csv")
    if form not in FORMATS:
        raise ValueError(f"--format is one of {', '.join(FORMATS)}, not {form!r}")
    if out and texts.exists() and out.exists() and out.samefile(texts):
        raise ValueError("--out is the file of the texts; choose another")
    stdin = texts == Path("-")
    name = "stdin" if stdin else texts.name
    csv_wanted = texts.suffix.lower() == ".csv" if as_csv is None else as_csv
    if within_ms is None:
        if strict:
            raise ValueError("--strict needs --within-ms")
        answering = _answering(folder, budget, soft, threads)
    else:
        answering = _answering_within(within_ms, folder, budget, soft, threads, strict)
    with (
        answering as (model, words, classes, columns),
        _target(out) as target,
        _opened(texts) as stream,
        _Watch(stream, texts) as watch,
    ):
        columns = column or columns
        rows = read_csv(stream, name, columns, None) if csv_wanted else read_lines(stream)
        # Who types wants an answer to each line; what comes in bulk is faster many at a time.
        chunk = 1 if stdin and sys.stdin.isatty() else CHUNK
        answered = run_predict(model, words, classes, rows, batch, chunk)
        for line in lines_of(watch.good(answered), classes, form):
            target.write(line)
            if chunk == 1:
                target.flush()
        target.flush()
    watch.sum_up(name)


@contextmanager
def _answering(
    folder: Path, budget: float | None, soft: bool, threads: int
) -> Iterator[tuple[Answering, Tokenizer, Sequence[str], Sequence[str]]]:
    """What answers texts, its tokenizer and classes, and the columns that it was trained on."""
    from apportion.serving.runtime.exported import is_export

    if soft and budget is None:
        raise ValueError("--soft needs a --budget")
    if is_export(folder):
        from apportion.serving.runtime.session import Runtime

        if soft:
            raise ValueError("an exported folder has no soft gates; --soft is for checkpoints")
        runtime = Runtime(folder, threads=threads)
        level = runtime.level_of(runtime.levels[-1] if budget is None else budget)
        columns = (runtime.facts.get("task") or {}).get("text", ["text"])
        yield partial(runtime, budget=level), runtime.tokenizer, runtime.classes, columns
        return
    from apportion.elastic.checkpoint import load
    from apportion.serving.arrays import model_at, on_arrays
    from apportion.serving.timing import using_threads

    loaded = load(folder)
    if loaded.words is None or loaded.classes is None:
        raise ValueError(f"{folder} was not trained on texts, so it can't read them")
    if budget is None:
        model = on_arrays(loaded.model.eval())
    else:
        model = model_at(loaded.require_elastic(), budget, soft=soft)
    with using_threads(threads):
        columns = loaded.notes.get("task", {}).get("text", ["text"])
        yield model, loaded.words, loaded.classes, columns


@contextmanager
def _answering_within(
    ms: float, folder: Path, budget: float | None, soft: bool, threads: int, strict: bool
) -> Iterator[tuple[Answering, Tokenizer, Sequence[str], Sequence[str]]]:
    """What `_answering` has, with a level for each call: the highest that fits into the time."""
    from apportion.serving.runtime.session import Runtime

    if soft:
        raise ValueError("soft gates compute every unit; --within-ms needs skipping")
    runtime = Runtime(folder, threads=threads)
    told: set[str] = set()

    def tell(message: str) -> None:
        if message not in told:
            told.add(message)
            _say(message)

    highest = runtime.levels[-1] if budget is None else budget
    model = runtime.within(ms, budget=highest, strict=strict, tell=tell)
    columns = (runtime.facts.get("task") or {}).get("text", ["text"])
    yield model, runtime.tokenizer, runtime.classes, columns


@contextmanager
def _target(out: Path | None) -> Iterator[TextIO]:
    """Where predictions go: a file that appears when it is whole, a device, or stdout."""
    from apportion.files import replacing

    if out is None:
        yield sys.stdout
    elif out.exists() and not out.is_file():
        with out.open("w", encoding="utf-8", newline="") as file:
            yield file
    else:
        with replacing(out) as part, part.open("w", encoding="utf-8", newline="") as file:
            yield file


@contextmanager
def _opened(texts: Path) -> Iterator[TextIO]:
    from apportion.data.rows import open_text

    if texts == Path("-"):
        if sys.stdin is None:
            raise ValueError("stdin is closed; name a file with the texts")
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline="")  # type: ignore[union-attr]
        if sys.stdin.isatty():
            _say("reading texts from the terminal, one a line; Ctrl-D ends them")
        yield sys.stdin
    elif not texts.exists() or texts.is_dir():
        raise ValueError(f"there is no file {texts}")
    elif texts.is_file():
        with open_text(texts) as stream:
            yield stream
    else:
        stream = open_text(texts)
        yield stream
        stream.close()  # only where all was read: to close what a thread reads is to wait for it


class _Watch:
    """Shows how far it is, names the rows that can't be read, and counts."""

    def __init__(self, stream: TextIO, texts: Path) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.stream = stream
        self.size = texts.stat().st_size if texts.is_file() else None
        self.rows = self.bad = 0
        self.started = time.monotonic()
        self.progress = Progress(
            TextColumn("predict"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[facts]}"),
            console=err,
            transient=True,
            disable=not err.is_terminal,
            redirect_stdout=False,  # what goes there is data, not for this console
            redirect_stderr=False,
        )
        self.bar = self.progress.add_task("", total=self.size, facts="")
        self.lines = Lines(err)

    def __enter__(self) -> _Watch:
        self.progress.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.progress.stop()

    def good(self, answered: Iterable[Prediction | BadRow]) -> Iterator[Prediction]:
        """The predictions; what is not one is reported and counted."""
        from apportion.data.rows import BadRow

        for answer in answered:
            if isinstance(answer, BadRow):
                self.bad += 1
                if self.bad <= _SHOWN:
                    _say(f"line {answer.line}: {answer.problem}")
                continue
            self.rows += 1
            if self.rows % 256 == 0:
                read = self.stream.buffer.tell() if self.size else None
                facts = f"{self.rows:,} rows, {self.speed:,.0f} rows/s"
                self.progress.update(self.bar, completed=read, facts=facts)
                self.lines.show("predict", facts, read or 0, self.size)
            yield answer

    @property
    def speed(self) -> float:
        """Rows a second so far."""
        return self.rows / max(1e-9, time.monotonic() - self.started)

    def sum_up(self, name: str) -> None:
        """The last word: how many rows, how fast, and how many could not be read."""
        if self.bad > _SHOWN:
            _say(f"… and {self.bad - _SHOWN:,} more rows that can't be read")
        lost = f", {self.bad:,} could not be read" if self.bad else ""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        _say(f"{name}: {rows} predicted{lost}, {self.speed:,.0f} rows/s")


def _say(message: str) -> None:
    err.print(message, markup=False, highlight=False, soft_wrap=True)
