"""Rows of texts and labels from CSV files and lines; a row that can't be read names its line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

LONGEST = 131_072  # characters of a text: also where the csv module gives up
_LONGEST_RECORD = 64 * LONGEST  # so that no file has to fit into memory


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


_PAIR = "text_pair"  # what Transformers calls the second text of a pair


def open_text(path: Path) -> TextIO:
    """A file of UTF-8 text; invalid bytes become surrogates, so that their row can be named."""
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def read_csv(
    stream: Iterable[str],
    where: str,
    text: Sequence[str],
    label: str | None,
    *,
    blank: bool = False,
) -> Iterator[Row | BadRow]:
    """The rows of a CSV file in order, read as they are asked for. `blank`: labels may be empty.

    The first line names the columns. The official files of AG News and DBpedia14 have no such
    line: there the first column is the class, a number, and the others are the text.
    """
    records = _records(stream)
    line, first = next(records, (1, None))
    if first is None:
        raise ValueError(f"{where} is empty")
    problem = first.problem if isinstance(first, BadRow) else _broken(*first)
    if problem or isinstance(first, BadRow):
        raise ValueError(f"{where}, line {line}: {problem}")
    names = [name.strip() for name in first]
    wanted = [*text, *([label] if label else [])]
    missing = [name for name in wanted if name not in names]
    bare = bool(missing) and len(names) > 1 and names[0].isdecimal()
    if missing and not bare:
        columns = ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names)
        raise ValueError(
            f"{where}, line {line}: there is no column {missing[0]!r}; the columns are {columns}"
        )
    if _PAIR in names and _PAIR not in text and not bare:
        raise ValueError(
            f"{where}, line {line}: there is a column {_PAIR!r}, and pairs of texts are not read "
            f"as such; name both columns to have them joined: --text {text[0]} --text {_PAIR}"
        )
    twice = [name for name in wanted if names.count(name) > 1]
    if twice and not bare:
        raise ValueError(f"{where}, line {line}: there are two columns {twice[0]!r}")
    texts = list(range(1, len(names))) if bare else [names.index(name) for name in text]
    labels = 0 if bare else names.index(label) if label else None
    if bare:
        yield row_of(line, first, len(names), texts, labels, blank=blank)
    for line, fields in records:
        if isinstance(fields, BadRow):
            yield fields
        else:
            yield row_of(line, fields, len(names), texts, labels, blank=blank)


def read_lines(stream: Iterable[str]) -> Iterator[Row | BadRow]:
    """One text per line; blank lines are left out."""
    for number, line in enumerate(stream, start=1):
        line = line.strip()
        if len(line) > LONGEST:
            yield BadRow(number, f"a text of {len(line):,} characters; the most is {LONGEST:,}")
        elif line:
            problem = _broken(line)
            yield BadRow(number, problem) if problem else Row(number, line)


def plain(text: str) -> str:
    """A text as it is compared with others: case and spaces do not count."""
    return " ".join(text.casefold().split())


def _records(stream: Iterable[str]) -> Iterator[tuple[int, list[str] | BadRow]]:
    """The fields of each record with the line where it starts; blank lines are left out.

    A quote that is left open would swallow the lines after it: only its own line is lost, the
    others are read again. Where a record broke, every line after its first began inside a quote:
    another record that comes to such a line inside a quote breaks at the same place. So each of
    them, but for the last, is a record by itself or none, and no line is read a third time.
    """
    lines = _Lines(stream)
    while True:
        reader = csv.reader(lines, strict=True)
        lines.begin()
        try:
            for fields in reader:
                if fields:
                    yield lines.start, fields
                lines.begin()
            return
        except csv.Error as error:
            problem = _problem(error)
            yield lines.start, BadRow(lines.start, problem)
            for number, line in lines.between():
                try:
                    fields = next(csv.reader([line], strict=True), [])
                except csv.Error as own:
                    is_open = "unexpected end" in str(own)
                    yield number, BadRow(number, problem if is_open else _problem(own))
                else:
                    if fields:
                        yield number, fields


def _problem(error: csv.Error) -> str:
    if "field limit" in str(error):
        return f"a text of more than {LONGEST:,} characters; is a quote left open?"
    return "a quote is left open" if "unexpected end" in str(error) else f"not CSV: {error}"


class _Lines:
    """Lines that remember the record that is being read; its last line can be read again."""

    def __init__(self, stream: Iterable[str]) -> None:
        self._stream = iter(stream)
        self._again: list[str] = []
        self._taken: list[str] = []
        self._size = 0
        self.start = 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.pop() if self._again else next(self._stream)
        self._taken.append(line)
        self._size += len(line)
        if self._size > _LONGEST_RECORD and len(self._taken) > 1:
            raise csv.Error("field limit")
        return line

    def begin(self) -> None:
        """A record begins after what was taken so far."""
        self.start += len(self._taken)
        self._taken, self._size = [], 0

    def between(self) -> list[tuple[int, str]]:
        """The lines between the first and the last of a broken record, with their numbers.

        The last one is read again; the first, which broke, is not.
        """
        numbered = list(enumerate(self._taken, start=self.start))
        self._again += self._taken[1:][-1:]
        self._taken = self._taken[:-1] or self._taken
        return numbered[1:-1]


def row_of(
    line: int,
    fields: list[str],
    count: int,
    texts: list[int],
    label: int | None,
    *,
    blank: bool = False,
) -> Row | BadRow:
    """A row of some fields: those at some places are its text, one may be its label."""
    if len(fields) != count:
        hint = "is a comma not quoted?" if len(fields) > count else "is one missing?"
        return BadRow(line, f"{len(fields)} fields in place of {count}; {hint}")
    problem = _broken(*fields)
    if problem:
        return BadRow(line, problem)
    text = " ".join(fields[n].strip() for n in texts).strip()
    if not text:
        return BadRow(line, "the text is empty")
    if len(text) > LONGEST:
        return BadRow(line, f"a text of {len(text):,} characters; the most is {LONGEST:,}")
    if label is None:
        return Row(line, text)
    if not blank and not fields[label].strip():
        return BadRow(line, "the label is empty")
    return Row(line, text, fields[label].strip())


def _broken(*texts: str) -> str | None:
    """Why texts are refused: invalid UTF-8, or a NUL byte."""
    for text in texts:
        if not text.isascii() and any("\udc80" <= c <= "\udcff" for c in text):
            return "not UTF-8; save the file in that encoding"
    if any("\0" in text for text in texts):
        return "a NUL byte, which no text has; save the file as text in UTF-8"
    return None
