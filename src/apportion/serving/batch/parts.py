"""Parts: answers that a job wrote piece by piece, and how one file is made of them.

A job keeps its answers in Parquet files, and beside them a file per part with the numbers of the
rows that are in it. A part counts once that second file has its final name: whatever else a killed
job left is no answer.
"""

from __future__ import annotations

import csv
import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.files import replacing

FORMATS = ("csv", "jsonl", "parquet")
_PENDING = ".pending.parquet"  # how Ray calls a part that is not whole yet
_ROWS = 8192  # written at a time


@dataclass(frozen=True)
class Answer:
    """What was said of a row; a row that could not be read has a problem in place of a label."""

    row: int  # its place among all rows of the job
    shard: int
    line: int
    id: str | None
    label: str | None
    budget: float | None
    probabilities: tuple[float | None, ...]  # none for a class that the model does not have
    problem: str | None = None


def answer_schema() -> Any:
    """The columns of a part."""
    import pyarrow as pa

    numbers = ((name, pa.int64()) for name in ("row", "shard", "line"))
    words = ((name, pa.string()) for name in ("id", "label", "problem"))
    shares = ("probabilities", pa.list_(pa.float64())), ("budget", pa.float64())
    return pa.schema([*numbers, *words, *shares])


class Parts:
    """The parts of a job in a folder: those that count, how many rows they have, all in order."""

    def __init__(self, folder: Path) -> None:
        self.answers, self.done = folder / "answers", folder / "done"
        self._rows: dict[str, int] = {}

    def mend(self) -> None:
        """Parts whose answers are damaged or gone count no more, so their rows are due again.

        A machine that loses power, or a node that dies as it writes a part once more, may leave
        the second file of a part without the first.
        """
        written = {name: 0 for name in self._names()}
        for path in self.answers.glob("*.parquet"):
            name = path.stem.rpartition("-")[0]
            if name in written:
                written[name] += _rows_of(path)
        for name, rows in written.items():
            if rows == 0 or rows != _rows_of(self.done / f"{name}.parquet"):
                (self.done / f"{name}.parquet").unlink()

    def rows(self) -> int:
        """How many rows have been answered; each part is looked at once."""
        import pyarrow.parquet as pq

        for name in self._names() - set(self._rows):
            self._rows[name] = pq.read_metadata(self.done / f"{name}.parquet").num_rows
        return sum(self._rows.values())

    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the rows that have been answered, each once."""
        import pyarrow.parquet as pq

        files = (self.done / f"{name}.parquet" for name in self._names())
        found = [pq.read_table(file).column("row").to_numpy() for file in files]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    def _names(self) -> set[str]:
        if not self.done.is_dir():
            return set()
        names = {path.name for path in self.done.iterdir() if path.suffix == ".parquet"}
        return {name.removesuffix(".parquet") for name in names if not name.endswith(_PENDING)}

    def merged(self) -> Iterator[Answer]:
        """All answers, in the order of the rows; a row that stands in two parts comes once.

        Parts overlap only where a job was stopped, so few of them are in memory at a time.
        """
        import pyarrow.parquet as pq

        waiting = sorted(self._starts(), reverse=True)
        opened: list[tuple[int, str, int, list[dict[str, Any]]]] = []
        last = -1
        while waiting or opened:
            while waiting and (not opened or waiting[-1][0] <= opened[0][0]):
                _, name = waiting.pop()
                rows = pq.read_table(self.answers / name).sort_by("row").to_pylist()
                heapq.heappush(opened, (rows[0]["row"], name, 0, rows))
            row, name, place, rows = heapq.heappop(opened)
            if place + 1 < len(rows):
                heapq.heappush(opened, (rows[place + 1]["row"], name, place + 1, rows))
            if row != last:
                last = row
                values = rows[place]
                yield Answer(**{**values, "probabilities": tuple(values["probabilities"] or ())})

    def _starts(self) -> Iterator[tuple[int, str]]:
        """The first row and the name of each file of a part that counts."""
        import pyarrow.parquet as pq

        names = self._names()
        for path in self.answers.glob("*.parquet"):
            if path.stem.rpartition("-")[0] not in names:
                continue
            about = pq.read_metadata(path)
            groups = [about.row_group(number) for number in range(about.num_row_groups)]
            place = about.schema.names.index("row")
            yield min(group.column(place).statistics.min for group in groups), path.name


def _rows_of(path: Path) -> int:
    """The rows of a Parquet file; of one that can't be read, none."""
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, ValueError):  # ArrowInvalid is a ValueError
        return 0


@dataclass(frozen=True)
class Layout:
    """What a file of answers shows beside labels and probabilities."""

    classes: tuple[str, ...]
    shards: tuple[str, ...]  # names of the files; shown where there are several
    id: bool = False  # ids of a column
    budget: bool = False  # where rows may be answered at several

    def facts(self, answer: Answer) -> dict[str, Any]:
        """Where an answer belongs, and its label."""
        facts: dict[str, Any] = {}
        if len(self.shards) > 1:
            facts["file"] = self.shards[answer.shard]
        facts["line"] = answer.line
        if self.id:
            facts["id"] = answer.id
        facts["label"] = answer.label
        return facts

    @property
    def names(self) -> list[str]:
        """The columns of a table of answers."""
        nobody = Answer(0, 0, 0, None, None, None, ())
        shares = (f"p({name})" for name in self.classes)
        return [*self.facts(nobody), *shares, *(["budget"] if self.budget else [])]

    def values(self, answer: Answer) -> list[Any]:
        """An answer as a row of that table."""
        budget = [answer.budget] if self.budget else []
        return [*self.facts(answer).values(), *answer.probabilities, *budget]


def form_of(out: Path) -> str:
    """The format of a file of answers by its name."""
    form = {".json": "jsonl"}.get(out.suffix, out.suffix.removeprefix("."))
    if form not in FORMATS:
        raise ValueError(f"--out ends in .csv, .jsonl or .parquet, not as {out.name!r} does")
    return form


def write_answers(answers: Iterable[Answer], out: Path, *, layout: Layout) -> None:
    """Writes answers as one file, CSV, JSON lines or Parquet, whole or not at all."""
    form = form_of(out)
    with replacing(out) as part:
        if form == "parquet":
            _write_parquet(answers, part, layout)
            return
        with part.open("w", encoding="utf-8", newline="") as file:
            if form == "jsonl":
                file.writelines(_json_line(answer, layout) for answer in answers)
                return
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(layout.names)
            for answer in answers:
                shares = ("" if p is None else f"{p:.6f}" for p in answer.probabilities)
                budget = [f"{answer.budget:g}"] if layout.budget else []
                writer.writerow([*layout.facts(answer).values(), *shares, *budget])


def _json_line(answer: Answer, layout: Layout) -> str:
    pairs = zip(layout.classes, answer.probabilities, strict=True)
    facts = layout.facts(answer) | ({"budget": answer.budget} if layout.budget else {})
    facts["probabilities"] = {name: round(p, 6) for name, p in pairs if p is not None}
    return json.dumps(facts, ensure_ascii=False, allow_nan=False) + "\n"


def _write_parquet(answers: Iterable[Answer], part: Path, layout: Layout) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"line": pa.int64(), "budget": pa.float64()}
    kinds |= {f"p({name})": pa.float32() for name in layout.classes}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in layout.names])
    rest = iter(answers)
    with pq.ParquetWriter(part, schema) as writer:
        while group := [layout.values(answer) for answer in islice(rest, _ROWS)]:
            columns: Sequence[Any] = list(zip(*group, strict=True))
            writer.write_table(
                pa.table(
                    [pa.array(c, k) for c, k in zip(columns, schema.types, strict=True)],
                    schema=schema,
                )
            )
