"""The command that takes texts: predict."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion.cli.main import app
from apportion.cli.streams import Watch, opened, say, target_of

if TYPE_CHECKING:
    from apportion.data.tokenizer import Tokenizer
    from apportion.serving.runtime.prediction import Answering


@app.command(
    epilog="[bold]apportion predict runs/mine/checkpoint new.csv -b 0.5 --out labels.csv[/] "
    "or, a text a line, [bold]cat texts | apportion predict runs/mine/checkpoint[/]. With a "
    "promise: [bold]apportion predict runs/mine/checkpoint new.csv --disagree-at-most 0.01 "
    "--out labels.csv[/]"
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
    certificate: Annotated[
        Path | None,
        typer.Option(
            help="Easy texts end at a small budget, as this file of `apportion certify` allows."
        ),
    ] = None,
    audit: Annotated[
        float | None,
        typer.Option(
            help="With --certificate, the share of rows that the whole model checks; when too many "
            "differ, it answers all that follow."
        ),
    ] = None,
    disagree_at_most: Annotated[
        float | None,
        typer.Option(
            help="Certify for this very file that no more of its answers differ from the whole "
            "model's, such as 0.01; the statement is written beside --out."
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Of the statement about this file. \\[default: 0.95]"),
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with a budget, a certificate, milliseconds or another folder per "
            "value of a tag column."
        ),
    ] = None,
    tag: Annotated[
        str | None, typer.Option(help="The tag column. \\[default: as the routing file says]")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Of the rows that --disagree-at-most draws. \\[default: random]"),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a text that are read at most, such as 2048: longer texts than the "
            "model reads are read in windows, and their answers pooled. --budget is of the whole "
            "text: it decides how many windows are read."
        ),
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(
            help="With --length, tokens that windows share. \\[default: an eighth of a window]"
        ),
    ] = None,
    until_sure: Annotated[
        Path | None,
        typer.Option(
            help="Read windows on until the answer is sure, as this file of `apportion certify "
            "--length` allows."
        ),
    ] = None,
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
    engine: Annotated[
        str,
        typer.Option(
            help="local, or ray: a batch job on a cluster of Ray, which reads CSV and Parquet, "
            "folders and patterns, and goes on after a kill."
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="The cluster of Ray, as host:port or auto. \\[default: one of this machine]"
        ),
    ] = None,
    actors: Annotated[
        int | None,
        typer.Option(help="Copies of the model on Ray, a thread each. \\[default: one per CPU]"),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="On Ray, a column whose values the output repeats.")
    ] = None,
) -> None:
    """Label texts at a budget: CSV or lines in, labels and probabilities out.

    Texts are read a few at a time, so a file of any size will do. A row that can't be read is
    named on stderr with its line and left out; the line of each row is in the output.
    """
    from apportion.cli.ray_jobs import check_engine, check_unused, predict_with_ray

    if batch < 1:
        raise ValueError(f"--batch is 1 at least, not {batch}")
    if confidence is not None and disagree_at_most is None:
        raise ValueError("--confidence is of a promise: it needs --disagree-at-most")
    if check_engine(engine, address, actors=actors, id=id_column):
        check_unused(strict=strict, soft=soft, within_ms=within_ms, format=form, audit=audit)
        check_unused(disagree_at_most=disagree_at_most, confidence=confidence, seed=seed)
        check_unused(length=length, overlap=overlap, until_sure=until_sure)
        predict_with_ray(
            folder,
            texts,
            out=out,
            text=column,
            id=id_column,
            as_csv=as_csv,
            budget=budget,
            certificate=certificate,
            routing=routing,
            tag=tag,
            batch=batch,
            threads=threads,
            address=address,
            actors=actors,
        )
        return
    from apportion.data.rows import read_csv, read_lines
    from apportion.serving.runtime.prediction import CHUNK, FORMATS, lines_of
    from apportion.serving.runtime.prediction import predict as run_predict

    if texts.suffix.lower() == ".parquet":
        raise ValueError("Parquet is read by --engine ray; the local engine reads CSV and lines")
    form = form or ("jsonl" if out and out.suffix in (".jsonl", ".json") else "csv")
    if form not in FORMATS:
        raise ValueError(f"--format is one of {', '.join(FORMATS)}, not {form!r}")
    if out and texts.exists() and out.exists() and out.samefile(texts):
        raise ValueError("--out is the file of the texts; choose another")
    stdin = texts == Path("-")
    name = "stdin" if stdin else texts.name
    csv_wanted = texts.suffix.lower() == ".csv" if as_csv is None else as_csv
    if length is not None or overlap is not None or until_sure is not None:
        from apportion.cli.documents import Long, predict_long

        others = {"certificate": certificate, "routing": routing, "within_ms": within_ms}
        others |= {"disagree_at_most": disagree_at_most, "audit": audit, "soft": soft or None}
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise ValueError(
                f"windows have a budget and a certificate of their own: leave "
                f"--{given[0].replace('_', '-')} out"
            )
        asked = Long(folder, texts, out, form, csv_wanted, column, batch, threads)
        predict_long(asked, budget, length=length, overlap=overlap, until_sure=until_sure)
        return
    if certificate or routing or disagree_at_most is not None:
        from apportion.cli.cascading import Asked, answer_texts

        if budget is not None or within_ms is not None or soft:
            raise ValueError(
                "a certificate, a promise or a routing file says which budgets are used: leave "
                "--budget, --within-ms and --soft out"
            )
        files = Asked(folder, texts, out, form, csv_wanted, column, batch, threads)
        sure = 0.95 if confidence is None else confidence
        promise = None if disagree_at_most is None else (disagree_at_most, sure)
        answer_texts(
            files,
            certificate=certificate,
            audit=audit,
            promise=promise,
            seed=seed,
            routing=routing,
            tag=tag,
        )
        return
    if audit is not None or tag is not None:
        raise ValueError("--audit needs --certificate, and --tag needs --routing")
    if seed is not None:
        raise ValueError("--seed is of the rows that --disagree-at-most draws")
    if within_ms is None:
        if strict:
            raise ValueError("--strict needs --within-ms")
        answering = _answering(folder, budget, soft, threads)
    else:
        answering = _answering_within(within_ms, folder, budget, soft, threads, strict)
    with (
        answering as (model, words, classes, columns),
        target_of(out) as target,
        opened(texts) as stream,
        Watch(stream, texts) as watch,
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
    from apportion.serving.bench.timing import using_threads
    from apportion.serving.runtime.arrays import model_at, on_arrays

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
            say(message)

    highest = runtime.levels[-1] if budget is None else budget
    model = runtime.within(ms, budget=highest, strict=strict, tell=tell)
    columns = (runtime.facts.get("task") or {}).get("text", ["text"])
    yield model, runtime.tokenizer, runtime.classes, columns
