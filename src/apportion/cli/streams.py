"""Streams of the commands that take texts: where they come from, where lines go, how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from apportion.cli.main import err
from apportion.training.progress import Lines

if TYPE_CHECKING:
    from apportion.data.rows import BadRow

_SHOWN = 20  # bad rows that are named one by one
Answered = TypeVar("Answered")


@contextmanager
def target_of(out: Path | None) -> Iterator[TextIO]:
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
def opened(texts: Path) -> Iterator[TextIO]:
    """The texts of a file, a pipe or stdin."""
    from apportion.data.rows import open_text

    if texts == Path("-"):
        if sys.stdin is None:
            raise ValueError("stdin is closed; name a file with the texts")
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline="")  # type: ignore[union-attr]
        if sys.stdin.isatty():
            say("reading texts from the terminal, one a line; Ctrl-D ends them")
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


class Watch:
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

    def __enter__(self) -> Watch:
        self.progress.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.progress.stop()

    def good(self, answered: Iterable[Answered | BadRow]) -> Iterator[Answered]:
        """The predictions; what is not one is reported and counted."""
        from apportion.data.rows import BadRow

        for answer in answered:
            if isinstance(answer, BadRow):
                self.bad += 1
                if self.bad <= _SHOWN:
                    say(f"line {answer.line}: {answer.problem}")
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
            say(f"… and {self.bad - _SHOWN:,} more rows that can't be read")
        lost = f", {self.bad:,} could not be read" if self.bad else ""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        say(f"{name}: {rows} predicted{lost}, {self.speed:,.0f} rows/s")


def say(message: str) -> None:
    """Tells the user something, on stderr."""
    err.print(message, markup=False, highlight=False, soft_wrap=True)
