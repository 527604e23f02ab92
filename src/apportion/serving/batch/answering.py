"""Answering a stream of rows by cascades: in order, in constant memory, each row with its budget.

Rows are taken a chunk at a time. Those of a chunk that a level is not sure of go on together, in
batches of like length.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.rows import BadRow, Row
from apportion.data.tokenizer import Tokenizer
from apportion.serving.guarantees.cascade import Cascade, ask
from apportion.serving.guarantees.drift import Drift, is_audited
from apportion.serving.runtime.prediction import CHUNK, FORMATS, encode_ahead

Likely = NDArray[np.float64]
# Rows and their ids in; probabilities [rows, classes] and the level that answered each row out.
Answering = Callable[[Sequence[Row], Sequence[Sequence[int]]], tuple[Likely, Likely]]


@dataclass(frozen=True)
class Answer:
    """The answer to the text on a line: its class, the probability of each, and the budget."""

    line: int
    label: str
    budget: float
    probabilities: Mapping[str, float]


def answer_rows(
    answering: Answering,
    rows: Iterable[Row | BadRow],
    *,
    words: Tokenizer,
    classes: Sequence[str],
    chunk: int = CHUNK,
) -> Iterator[Answer | BadRow]:
    """An answer for each row, in order; rows that could not be read pass through."""
    for group, encoded in encode_ahead(words, iter(rows), chunk):
        good = [row for row in group if isinstance(row, Row)]
        answers = iter(answers_to(good, *answering(good, encoded), classes))
        yield from (row if isinstance(row, BadRow) else next(answers) for row in group)


def answers_to(
    rows: Sequence[Row], likely: Likely, levels: Likely, classes: Sequence[str]
) -> list[Answer]:
    """Probabilities and levels as answers."""
    return [
        Answer(
            row.line,
            classes[int(one.argmax())],
            float(level),
            dict(zip(classes, one.tolist(), strict=True)),
        )
        for row, one, level in zip(rows, likely, levels, strict=True)
    ]


def by_cascade(
    cascade: Cascade, *, batch: int = 32, known: Mapping[int, Likely] | None = None
) -> Answering:
    """What answers rows by a cascade; those whose line is known keep the whole model's answer."""
    known, whole = known or {}, cascade.runtime.levels[-1]

    def answering(rows: Sequence[Row], encoded: Sequence[Sequence[int]]) -> tuple[Likely, Likely]:
        likely, levels = np.empty((len(rows), len(cascade.runtime.classes))), np.empty(len(rows))
        asked = [place for place, row in enumerate(rows) if row.line not in known]
        likely[asked], levels[asked] = cascade.answer([encoded[n] for n in asked], batch=batch)
        for place, row in enumerate(rows):
            if row.line in known:
                likely[place], levels[place] = known[row.line], whole
        return likely, levels

    return answering


class Audited:
    """A cascade that is watched: some rows are asked of the whole model as well.

    Which ones, a hash of their lines decides. When the watch rings, the rows at hand and all that
    come are answered by the whole model.
    """

    def __init__(
        self, cascade: Cascade, drift: Drift, *, share: float, salt: str = "", batch: int = 32
    ) -> None:
        is_audited("", share)  # complains now of a share that is none
        self.cascade, self.drift = cascade, drift
        self.share, self.salt, self.batch = share, salt, batch

    def __call__(
        self, rows: Sequence[Row], encoded: Sequence[Sequence[int]]
    ) -> tuple[Likely, Likely]:
        """Probabilities [rows, classes] and the level that answered each row."""
        if self.drift.alarm:
            return self._whole(encoded)
        likely, levels = self.cascade.answer(encoded, batch=self.batch)
        chosen = [
            place
            for place, row in enumerate(rows)
            if is_audited(str(row.line), self.share, salt=self.salt)
        ]
        whole, top = self._whole([encoded[place] for place in chosen])
        rings = False
        for place, one in zip(chosen, whole, strict=True):
            rings = self.drift.observe(bool(likely[place].argmax() != one.argmax()))
        if rings:
            return self._whole(encoded)
        likely[chosen], levels[chosen] = whole, top
        return likely, levels

    def _whole(self, encoded: Sequence[Sequence[int]]) -> tuple[Likely, Likely]:
        level = self.cascade.runtime.levels[-1]
        likely = ask(self.cascade.runtime, encoded, level=level, batch=self.batch)
        return likely, np.full(len(encoded), level)


def lines_of_answers(answers: Iterable[Answer], classes: Sequence[str], form: str) -> Iterator[str]:
    """Answers as the lines of a file: CSV with a header, or one JSON object per line.

    A class that the model behind an answer does not have is left empty.
    """
    if form not in FORMATS:
        raise ValueError(f"a format is one of {', '.join(FORMATS)}, not {form!r}")
    if form == "csv":
        yield _csv_line(["line", "label", *(f"p({name})" for name in classes), "budget"])
    for one in answers:
        if form == "csv":
            shares = (one.probabilities.get(name) for name in classes)
            cells = ("" if share is None else f"{share:.6f}" for share in shares)
            yield _csv_line([one.line, one.label, *cells, f"{one.budget:g}"])
            continue
        likely = {name: round(share, 6) for name, share in one.probabilities.items()}
        facts = {"line": one.line, "label": one.label, "budget": one.budget}
        line = json.dumps({**facts, "probabilities": likely}, ensure_ascii=False, allow_nan=False)
        yield line + "\n"


def _csv_line(cells: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
