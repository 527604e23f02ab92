"""Shards: texts that lie in one file, in a folder or under a pattern, as CSV, Parquet or lines."""

from __future__ import annotations

import csv
import glob
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apportion.data.rows import BadRow, Row, open_text, read_csv, read_lines, row_of
from apportion.extras import require
from apportion.files import sha256

KINDS = ("csv", "parquet", "lines")
_SUFFIXES = {".csv": "csv", ".parquet": "parquet"}  # any other is a file of lines


@dataclass(frozen=True)
class Shard:
    """A file of texts: its kind, how many rows it has and what is in it."""

    path: Path
    kind: str
    rows: int
    digest: str


@dataclass(frozen=True)
class Columns:
    """The columns to read: of the text, joined, and of id and tag where rows have them."""

    text: tuple[str, ...] = ("text",)
    id: str | None = None
    tag: str | None = None

    @property
    def marks(self) -> list[str]:
        """The columns that are not text."""
        return [name for name in (self.id, self.tag) if name is not None]


@dataclass(frozen=True)
class MarkedRow(Row):
    """A text that was read, with its id and its tag where columns of them were named."""

    id: str | None = None
    tag: str | None = None


def find_shards(where: str | Path, columns: Columns, *, kind: str | None = None) -> list[Shard]:
    """The files at a path, in a folder or under a pattern, in the order of their names.

    Each is read once, to count its rows: a column that is missing is found now.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"a file of texts is one of {', '.join(KINDS)}, not {kind!r}")
    return [_measured(path, columns, kind) for path in _paths(Path(where))]


def _paths(where: Path) -> list[Path]:
    if where.is_file():
        return [where]
    if where.is_dir():
        inside = sorted(path for path in where.iterdir() if path.is_file())
        found = [p for p in inside if p.suffix.lower() in _SUFFIXES and p.name[0] != "."]
        if not found:
            raise ValueError(f"there is no CSV or Parquet file in {where}")
        return found
    if not glob.has_magic(str(where)):
        raise ValueError(f"there is no file {where}")
    matched = sorted(map(Path, glob.glob(str(where), recursive=True)))  # noqa: PTH207 - absolute, too
    found = [path for path in matched if path.is_file()]
    if not found:
        raise ValueError(f"no file matches {str(where)!r}")
    return found


def _measured(path: Path, columns: Columns, kind: str | None) -> Shard:
    kind = kind or _SUFFIXES.get(path.suffix.lower(), "lines")
    unread = Shard(path.absolute(), kind, 0, "")
    if kind == "parquet":
        with _parquet(path) as file:
            _check_schema(path, file.schema_arrow, columns)
            rows = file.metadata.num_rows
    else:
        rows = sum(1 for _ in read_shard(unread, columns))
    return replace(unread, rows=rows, digest=sha256(path))


def read_shard(shard: Shard, columns: Columns) -> Iterator[MarkedRow | BadRow]:
    """The rows of a shard in order.

    The line of a row of a Parquet file is its number, counted from 1.
    """
    if shard.kind == "parquet":
        yield from _read_parquet(shard.path, columns)
        return
    if columns.marks and shard.kind == "lines":
        raise ValueError(f"{shard.path.name} has a text per line, and no {columns.marks[0]!r}")
    if shard.kind == "lines":
        with open_text(shard.path) as stream:
            for row in read_lines(stream):
                yield row if isinstance(row, BadRow) else MarkedRow(row.line, row.text)
        return
    with ExitStack() as opened:
        # The file is read once per mark, side by side, since a row has one label.
        readers = [
            read_csv(
                opened.enter_context(open_text(shard.path)),
                shard.path.name,
                columns.text,
                mark,
                blank=True,
            )
            for mark in columns.marks or (None,)
        ]
        check_header(shard.path, columns.marks)
        for rows in zip(*readers, strict=True):
            yield _marked(rows, columns)


def _marked(rows: Sequence[Row | BadRow], columns: Columns) -> MarkedRow | BadRow:
    """One row of readings that differ in their labels alone."""
    marks: list[str] = []
    for row in rows:
        if isinstance(row, BadRow):
            return row
        marks.append(row.label)
    first = rows[0]
    assert isinstance(first, Row)
    of = dict(zip(columns.marks, marks, strict=False))
    return MarkedRow(
        first.line, first.text, id=of.get(columns.id or "") or None, tag=of.get(columns.tag or "")
    )


def check_header(path: Path, columns: Sequence[str]) -> None:
    """Complains of a file without a column; one without a header has none that could be named."""
    with open_text(path) as stream:
        names = [name.strip() for name in next(csv.reader(stream), [])]
    for column in columns:
        if column not in names:
            raise ValueError(
                f"{path.name}, line 1: there is no column {column!r}; the columns are "
                f"{_listed(names)}"
            )


def _read_parquet(path: Path, columns: Columns) -> Iterator[MarkedRow | BadRow]:
    texts, number = list(range(len(columns.text))), 0
    wanted = [*columns.text, *columns.marks]
    with _parquet(path) as file:
        for batch in file.iter_batches(1024, columns=list(dict.fromkeys(wanted))):
            values = [batch.column(name).to_pylist() for name in wanted]
            for fields in zip(*values, strict=True):
                number += 1
                words = ["" if field is None else str(field) for field in fields]
                places = range(len(texts), len(wanted)) if columns.marks else (None,)
                readings = [
                    row_of(number, words, len(wanted), texts, place, blank=True) for place in places
                ]
                yield _marked(readings, columns)


def _parquet(path: Path) -> Any:
    pq = require("pyarrow.parquet")
    try:
        return pq.ParquetFile(path)
    except (ValueError, OSError) as error:  # ArrowInvalid is a ValueError
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not readable as Parquet: {reason}") from None


def _check_schema(path: Path, schema: Any, columns: Columns) -> None:
    import pyarrow.types as types

    for name in (*columns.text, *columns.marks):
        count = schema.names.count(name)
        if count == 0:
            raise ValueError(
                f"{path.name}: there is no column {name!r}; the columns are {_listed(schema.names)}"
            )
        if count > 1:
            raise ValueError(f"{path.name}: there are two columns {name!r}")
        kind = schema.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if name in columns.text and not (types.is_string(kind) or types.is_large_string(kind)):
            raise ValueError(f"{path.name}: column {name!r} holds {kind}, not text")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names)
