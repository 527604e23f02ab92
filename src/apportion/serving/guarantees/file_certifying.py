"""A certificate for one file: rows of this very file are drawn, so nothing is assumed of the data.

The whole model answers the drawn rows. Some tune thresholds; the others, a draw without replacement
from the rest of the file, test them by the hypergeometric tail. The probability is that of the
draw, which is ours.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.rows import BadRow, Row
from apportion.files import json_text, write_text
from apportion.serving.guarantees.cascade import Cascade, check_whole
from apportion.serving.guarantees.certifying import answers_of, tune, wrong_of
from apportion.serving.guarantees.guarantee import (
    check_promise,
    draw_needed,
    hypergeometric_tail,
    last_certified,
    rows_needed,
)
from apportion.serving.runtime.session import Runtime

FORMAT, VERSION = "apportion-statement", 1
_TUNED, _CALIBRATED = 1000, 2000  # rows that are drawn at most, if so many are enough
_FEWEST = 50  # that tune


@dataclass(frozen=True)
class Statement:
    """What is certain of the answers to one file."""

    says: str
    certified: bool
    disagree_at_most: float
    confidence: float
    rows: int  # of the file, those that could be read
    at_most: int  # answers that may differ from the whole model's
    tuned_rows: int
    drawn_rows: int  # that tested the thresholds
    disagreements: int  # of the drawn rows, had they been left to the cascade
    levels: tuple[float, ...]
    thresholds: tuple[float | None, ...]
    seed: int  # of the draw
    identity: dict[str, str]

    def save(self, path: Path, **digests: str) -> None:
        """Writes the statement, and the digests of the files that it speaks of."""
        values: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(self), **digests}
        write_text(path, json_text(values, str(path)))


def most_rows(epsilon: float, delta: float) -> int:
    """How many rows are drawn at most: a strict promise needs many."""
    tested = rows_needed(epsilon, delta)
    return max(_TUNED + _CALIBRATED, tested + tested // 2 + _TUNED)


def draw_rows(rows: Iterable[Row | BadRow], *, most: int, seed: int) -> tuple[int, list[Row]]:
    """How many rows can be read, and some of them, each set of that size as likely as any other.

    They come in random order, and no more of them are held than are drawn.
    """
    draw = random.Random(seed)
    count, drawn = 0, list[Row]()
    for row in rows:
        if isinstance(row, BadRow):
            continue
        count += 1
        if len(drawn) < most:
            drawn.append(row)
        elif (place := draw.randrange(count)) < most:
            drawn[place] = row
    draw.shuffle(drawn)
    return count, drawn


def draw_sizes(count: int, *, epsilon: float, delta: float) -> tuple[int, int] | None:
    """How many rows of a file tune, and how many test; None where half the file is too few."""
    needed = draw_needed(count, math.floor(epsilon * count) + 1, delta)
    if needed is None:
        return None
    # Half as many again as can certify anything: one disagreement must not spoil it.
    tested = max(needed + needed // 2, min(_CALIBRATED, count // 10))
    tuned = max(_FEWEST, min(_TUNED, tested // 2))
    return (tuned, tested) if tuned + tested <= count // 2 else None


def last_of_file(
    disagreements: Sequence[int] | NDArray[np.int64],
    tested: int,
    *,
    count: int,
    tuned: int,
    epsilon: float,
    delta: float,
) -> int | None:
    """The last step of a path that a draw from a file of `count` rows certifies.

    `disagreements` has one number per step. Rows that tuned are answered by the whole model, so
    all answers that differ are among the others.
    """
    differing = math.floor(epsilon * count) + 1
    tails = hypergeometric_tail(
        disagreements, tested, population=count - tuned, differing=differing
    )
    return last_certified(tails, delta)


@dataclass(frozen=True)
class FileCascade:
    """A cascade for the rows of one file, and the answers to those that were drawn from it."""

    cascade: Cascade
    known: dict[int, NDArray[np.float64]]  # probabilities [classes], by line
    statement: Statement


def certify_file(
    runtime: Runtime,
    drawn: Sequence[Row],
    *,
    count: int,
    disagree_at_most: float,
    confidence: float,
    seed: int,
    batch: int = 32,
    progress: Callable[[str, int, int], None] | None = None,
) -> FileCascade:
    """What answers the rows of a file of `count`, of which these were drawn, and what is certain.

    A file that is too small, or on which no thresholds can be certified, is answered whole.
    """
    epsilon, delta = check_promise(disagree_at_most, confidence)
    check_whole(runtime)
    sizes = draw_sizes(count, epsilon=epsilon, delta=delta)
    never: tuple[float | None, ...] = (None,) * (len(runtime.levels) - 1)
    thresholds, wrong, known = never, 0, dict[int, NDArray[np.float64]]()
    if sizes is not None:
        tuned, tested = sizes
        tuning, testing = drawn[:tuned], drawn[tuned : tuned + tested]
        found = tune(
            runtime, [row.text for row in tuning], epsilon=epsilon, batch=batch, progress=progress
        )
        encoded = runtime.tokenizer.encode([row.text for row in testing])
        pool = answers_of(runtime, encoded, levels=found.levels, batch=batch, progress=progress)
        counts = [wrong_of(pool, step.thresholds) for step in found.path]
        last = last_of_file(counts, tested, count=count, tuned=tuned, epsilon=epsilon, delta=delta)
        if last is not None:
            thresholds, wrong = found.path[last].thresholds, counts[last]
        assert found.pool.whole is not None and pool.whole is not None
        known = {row.line: one for row, one in zip(tuning, found.pool.whole, strict=True)}
        known |= {row.line: one for row, one in zip(testing, pool.whole, strict=True)}
    certified = any(one is not None for one in thresholds)
    at_most = math.floor(epsilon * count) if certified else 0
    statement = Statement(
        says=_sentence(count, at_most, confidence, certified, sizes is None),
        certified=certified,
        disagree_at_most=epsilon,
        confidence=confidence,
        rows=count,
        at_most=at_most,
        tuned_rows=sizes[0] if sizes else 0,
        drawn_rows=sizes[1] if sizes else 0,
        disagreements=wrong,
        levels=runtime.levels,
        thresholds=thresholds,
        seed=seed,
        identity=dict(runtime.identity),
    )
    return FileCascade(Cascade(runtime, thresholds), known, statement)


def _sentence(count: int, at_most: int, confidence: float, certified: bool, small: bool) -> str:
    """The statement in words."""
    if certified:
        return (
            f"At most {at_most:,} of the {count:,} answers differ from the whole model's, with "
            f"probability {confidence:g} at least over the draw of the rows."
        )
    why = (
        "the file is too small to certify a cascade"
        if small
        else "no cascade could be certified on the drawn rows"
    )
    return f"All {count:,} answers are the whole model's: {why}."
