"""Rows of texts and labels out of CSV files and lines; a row that can't be read has its line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True)
class Row:
    """A text that was read, with its label if it has one."""

    line: int  # where it starts, counted from 1
    text: str
    label: str = ""


@dataclass(frozen=True)
class BadRow:
    """A row that could not be read, and why."""

    line: int
    problem: str


def open_text(path: Path) -> TextIO:
    """A file of UTF-8 text; bytes that are not are kept apart, so that their row can be named."""
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def read_csv(
    stream: Iterable[str], where: str, text: Sequence[str], label: str | None
) -> Iterator[Row | BadRow]:
    """The rows of a CSV file in order, read as they are asked for.

    The first line names the columns. The official files of AG News and DBpedia14 have no such
    line: there the first column is the class, a number, and the others are the text.
    """
    reader = csv.reader(stream)
    first = _next(reader, 1)
    if first is None:
        raise ValueError(f"{where} is empty")
    if isinstance(first, BadRow):
        raise ValueError(f"{where}, line 1: {first.problem}")
    names = [name.strip() for name in first]
    wanted = [*text, *([label] if label else [])]
    missing = [name for name in wanted if name not in names]
    bare = bool(missing) and len(names) > 1 and names[0].isdigit()
    if missing and not bare:
        raise ValueError(
            f"{where}, line 1: there is no column {missing[0]!r}; "
            f"the columns are {', '.join(map(repr, names))}"
        )
    texts = list(range(1, len(names))) if bare else [names.index(name) for name in text]
    labels = 0 if bare else names.index(label) if label else None
    if bare:
        yield _row(1, first, len(names), texts, labels)
    while True:
        line = reader.line_num + 1
        fields = _next(reader, line)
        if fields is None:
            return
        if isinstance(fields, BadRow):
            yield fields
        elif fields:  # not a blank line
            yield _row(line, fields, len(names), texts, labels)


def read_lines(stream: Iterable[str]) -> Iterator[Row | BadRow]:
    """One text a line; blank lines are left out."""
    for number, line in enumerate(stream, start=1):
        line = line.strip()
        if len(line) > csv.field_size_limit():
            yield BadRow(number, f"a text of {len(line):,} characters; {_LIMIT}")
        elif line:
            yield BadRow(number, _NOT_UTF8) if _is_broken(line) else Row(number, line)


_NOT_UTF8 = "not UTF-8; save the file in that encoding"
_LIMIT = f"the most is {csv.field_size_limit():,}"


def _next(reader: Iterator[list[str]], line: int) -> list[str] | BadRow | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        if "field limit" in str(error):
            return BadRow(line, f"a text too long to be one ({_LIMIT}); is a quote left open?")
        return BadRow(line, f"not CSV: {error}")


def _row(
    line: int, fields: list[str], count: int, texts: list[int], label: int | None
) -> Row | BadRow:
    if len(fields) != count:
        hint = "is a comma not quoted?" if len(fields) > count else "is one missing?"
        return BadRow(line, f"{len(fields)} fields in place of {count}; {hint}")
    if any(map(_is_broken, fields)):
        return BadRow(line, _NOT_UTF8)
    text = " ".join(fields[n].strip() for n in texts).strip()
    if not text:
        return BadRow(line, "the text is empty")
    if label is None:
        return Row(line, text)
    if not fields[label].strip():
        return BadRow(line, "the label is empty")
    return Row(line, text, fields[label].strip())


def _is_broken(text: str) -> bool:
    """Whether there are bytes in it that were not UTF-8."""
    return not text.isascii() and any("\udc80" <= c <= "\udcff" for c in text)
