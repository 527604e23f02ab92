"""What jobs on Ray show: how far they are, the rows that can't be read, and the last word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from apportion.cli.main import err
from apportion.training.progress import Lines

ENGINES = ("local", "ray")
_SHOWN = 20  # bad rows that are named one by one


def check_engine(engine: str, address: str | None, **others: object) -> bool:
    """Whether work is for Ray; an address, and what else only Ray knows, is for nothing else."""
    if engine not in ENGINES:
        raise ValueError(f"--engine is one of {', '.join(ENGINES)}, not {engine!r}")
    given = [name for name, value in {"address": address, **others}.items() if value is not None]
    if given and engine != "ray":
        raise ValueError(f"--{given[0]} needs --engine ray")
    return engine == "ray"


def check_unused(**options: object) -> None:
    """Complains of options that a job on Ray does not know."""
    given = [
        name.replace("_", "-") for name, value in options.items() if value not in (None, False)
    ]
    if given:
        raise ValueError(f"--{given[0]} is for --engine local")


def predict_with_ray(
    folder: Path,
    texts: Path,
    *,
    out: Path | None,
    as_csv: bool | None,
    threads: int,
    **options: Any,
) -> None:
    """Runs a batch job on Ray and says on stderr what came of it."""
    from apportion.serving.batch.ray_batch import predict_on_ray

    if out is None:
        raise ValueError("--engine ray writes a file: name it with --out, as .csv or .parquet")
    if texts == Path("-"):
        raise ValueError("--engine ray reads files, not stdin: name a file, a folder or a pattern")
    if threads != 1:
        raise ValueError("on Ray each actor has one thread; choose how many with --actors")
    if as_csv is not None:
        options["kind"] = "csv" if as_csv else "lines"
    bad = 0

    def tell_bad(name: str, line: int, problem: str) -> None:
        nonlocal bad
        bad += 1
        if bad <= _SHOWN:
            _say(f"{name}, line {line}: {problem}")

    try:
        with _bar() as progress:
            done = predict_on_ray(
                folder, texts, out=out, progress=progress, on_bad_row=tell_bad, **options
            )
    except KeyboardInterrupt:
        _say("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None
    if bad > _SHOWN:
        _say(f"… and {bad - _SHOWN:,} more rows that can't be read")
    lost = f", {done.bad:,} could not be read" if done.bad else ""
    before = f", {done.before:,} of them by a job that was stopped" if done.before else ""
    _say(f"{out}: {done.rows:,} rows predicted{before}{lost}, in {done.seconds:,.0f} s")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A bar of rows on a terminal, and lines elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    lines = Lines(err)
    columns = TextColumn("predict"), BarColumn(bar_width=24), MofNCompleteColumn()
    bars = Progress(
        *columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal
    )
    bar = bars.add_task("", total=None)

    def show(done: int, of: int) -> None:
        bars.update(bar, completed=done, total=of)
        lines.show("predict", f"{done:,} of {of:,} rows", done, of)

    with bars:
        yield show


def _say(message: str) -> None:
    err.print(message, markup=False, highlight=False, soft_wrap=True)
