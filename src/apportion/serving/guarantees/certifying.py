"""Certifying: thresholds at which a cascade provably answers as the whole model does.

Learn then Test: tuning rows give a path of thresholds; calibration rows, which nobody looked at
before, test it in order, by exact tails. The last thresholds that pass are kept. The oracle is the
whole model, so no labels are needed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apportion.data.rows import plain
from apportion.serving.guarantees.cascade import (
    Cascade,
    Pool,
    ask,
    check_whole,
    ends_at,
    margins_of,
)
from apportion.serving.guarantees.certificate import Certificate, Tested, digest_of_texts
from apportion.serving.guarantees.guarantee import (
    binomial_bound,
    binomial_tail,
    check_promise,
    last_certified,
    rows_needed,
)
from apportion.serving.guarantees.threshold_path import TIES, Step, find_path
from apportion.serving.runtime.session import Runtime

ROWS = 3000  # texts that are used: a third of them to tune with
_TUNED, _FEWEST = 3, 20  # one row in three tunes, and so many at least
_FIXED = 0.04  # share of the whole model's time that is not of its units
_TIMED, _TURNS = 512, 5  # texts and turns that the speed is measured with
_LENGTHS = (16, 32, 64, 128, 256, 512)  # tokens

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


def certify(
    folder: str | Path | Runtime,
    texts: Sequence[str],
    *,
    disagree_at_most: float = 0.01,
    confidence: float = 0.95,
    rows: int = ROWS,
    batch: int = 32,
    threads: int = 1,
    seed: int = 0,
    timed: int = _TIMED,
    progress: Callable[[str, int, int], None] | None = None,
) -> Certificate:
    """A certificate: at most that share of answers differs from the whole model's.

    It holds with that confidence, over the choice of the texts, for texts that come from where
    these come from. At most `rows` of them are used, drawn by the seed; repeated texts count once.
    Where no thresholds can be certified, every text goes to the whole model. The speed that it
    reports is measured with at most `timed` texts.
    """
    epsilon, delta = check_promise(disagree_at_most, confidence)
    runtime = folder if isinstance(folder, Runtime) else Runtime(folder, threads=threads)
    check_whole(runtime)
    drawn = draw_texts(texts, runtime, epsilon=epsilon, delta=delta, rows=rows, seed=seed)
    tuning, calibration = _split(drawn)
    tuned = tune(runtime, tuning, epsilon=epsilon, batch=batch, progress=progress)
    encoded = runtime.tokenizer.encode(calibration)
    pool = answers_of(runtime, encoded, levels=tuned.levels, batch=batch, progress=progress)
    wrong = [wrong_of(pool, step.thresholds) for step in tuned.path]
    last = last_certified(binomial_tail(wrong, len(pool), epsilon), delta)
    assert last is not None, "the whole model alone never disagrees, and there are rows enough"
    tested = judge_path(pool, tuned, costs=runtime.costs, last=last)
    chosen = tested[last]
    ends = ends_at(pool.margins, chosen.thresholds)
    differs = pool.differs(TIES)[ends, np.arange(len(pool))]
    speed, own, whole = measure_speed(
        Cascade(runtime, chosen.thresholds), calibration[:timed], batch=batch, progress=progress
    )
    lengths = np.array([len(row) for row in encoded])
    return Certificate(
        disagree_at_most=epsilon,
        confidence=confidence,
        rows=len(pool),
        disagreements=chosen.disagreements,
        bound=binomial_bound(chosen.disagreements, len(pool), delta),
        levels=runtime.levels,
        thresholds=chosen.thresholds,
        ends=tuple(float((ends == n).mean()) for n in range(len(runtime.levels))),
        cost=chosen.cost,
        speed=speed,
        rows_per_second=own,
        whole_rows_per_second=whole,
        batch=batch,
        threads=runtime.threads,
        seed=seed,
        tuned_rows=len(tuning),
        texts=digest_of_texts(calibration),
        identity=dict(runtime.identity),
        by_class=_by_class(pool.labels[-1], differs, runtime.classes),
        by_length=_by_length(lengths, differs),
        path=tuple(tested),
    )


def texts_needed(epsilon: float, delta: float) -> int:
    """The fewest different texts that can certify anything once a third of them has tuned."""
    needed = rows_needed(epsilon, delta)
    count = max(needed * _TUNED // (_TUNED - 1) - _TUNED, _FEWEST * _TUNED, needed)
    while count - count // _TUNED < needed:
        count += 1
    return count


def check_texts(texts: Sequence[str], classes: Sequence[str]) -> None:
    """Complains of labels in place of texts."""
    names = {plain(name) for name in classes}
    if texts and all(plain(text) in names or text.strip().isdecimal() for text in texts):
        raise ValueError(
            f"the texts are labels, such as {texts[0]!r}; name the column of the texts with --text"
        )


def draw_texts(
    texts: Sequence[str],
    runtime: Runtime,
    *,
    epsilon: float,
    delta: float,
    rows: int,
    seed: int,
    kind: str = "texts",
) -> list[str]:
    """Different texts in an order drawn by the seed; too few to certify anything are refused."""
    distinct = list({plain(text): text for text in reversed(texts)}.values())[::-1]
    check_texts(distinct, runtime.classes)
    needed, have = texts_needed(epsilon, delta), min(rows, len(distinct))
    if have < needed:
        raise ValueError(
            f"{have:,} different {kind} can't certify that at most {epsilon:g} of the answers "
            f"differ with confidence {1.0 - delta:g}: at least {needed:,} are needed"
        )
    return [distinct[n] for n in np.random.default_rng(seed).permutation(len(distinct))[:rows]]


def _split(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tuning and calibration texts, of texts in random order."""
    tuned = len(texts) // _TUNED
    return list(texts[:tuned]), list(texts[tuned:])


def prices_of(costs: Sequence[float]) -> list[float]:
    """What levels take beside the whole model, roughly: their units, and what no budget saves.

    Times would say it better, and make another certificate of every run.
    """
    return [_FIXED + (1.0 - _FIXED) * cost / costs[-1] for cost in costs]


@dataclass(frozen=True)
class Tuned:
    """What tuning rows gave: their answers, and a path of thresholds with what it is made of."""

    pool: Pool
    path: list[Step]
    levels: list[int]  # places of the levels that the path uses
    prices: list[float]


def tune(
    runtime: Runtime,
    texts: Sequence[str],
    *,
    epsilon: float,
    batch: int = 32,
    progress: Progress | None = None,
) -> Tuned:
    """A path of thresholds, found on these texts."""
    encoded = runtime.tokenizer.encode(texts)
    every = list(range(len(runtime.levels)))
    pool = answers_of(runtime, encoded, levels=every, batch=batch, progress=progress)
    prices = prices_of(runtime.costs)
    path = find_path(pool, prices, epsilon=epsilon)
    used = {n for step in path for n, least in enumerate(step.thresholds) if least is not None}
    return Tuned(pool, path, sorted(used | {every[-1]}), prices)


def answers_of(
    runtime: Runtime,
    encoded: Sequence[Sequence[int]],
    *,
    levels: Sequence[int],
    batch: int = 32,
    progress: Progress | None = None,
) -> Pool:
    """What the levels at these places say of encoded rows; the others are never sure.

    The last of the places is the whole model's.
    """
    labels = np.zeros((len(runtime.levels), len(encoded)), np.int64)
    margins = np.full((len(runtime.levels), len(encoded)), -1.0)
    for done, place in enumerate(levels):
        if progress:
            progress("asking every level", done, len(levels))
        likely = ask(runtime, encoded, level=runtime.levels[place], batch=batch)
        labels[place], margins[place] = likely.argmax(axis=-1), margins_of(likely)
    return Pool(labels, margins, likely)


def wrong_of(pool: Pool, thresholds: Sequence[float | None]) -> int:
    """How many rows of a pool a cascade answers otherwise than the whole model."""
    ends = ends_at(pool.margins, thresholds)
    return int(pool.differs(TIES)[ends, np.arange(len(pool))].sum())


def judge_path(
    pool: Pool, tuned: Tuned, *, costs: Sequence[float], last: int | None
) -> list[Tested]:
    """What the calibration rows say of each step; those up to `last` are certified."""
    return [
        Tested(
            thresholds=step.thresholds,
            disagreements=wrong_of(pool, step.thresholds),
            certified=last is not None and number <= last,
            cost=mean_cost(pool, step.thresholds, costs),
            price=mean_cost(pool, step.thresholds, tuned.prices),
        )
        for number, step in enumerate(tuned.path)
    ]


def mean_cost(pool: Pool, thresholds: Sequence[float | None], costs: Sequence[float]) -> float:
    """What a text costs on average: all levels that it goes through."""
    ends = ends_at(pool.margins, thresholds)
    total = costs[-1] * float((ends == len(costs) - 1).mean())
    for place, least in enumerate(thresholds):
        if least is not None:
            total += costs[place] * float((ends >= place).mean())
    return total


def measure_speed(
    cascade: Cascade,
    texts: Sequence[str],
    *,
    batch: int = 32,
    turns: int = _TURNS,
    progress: Progress | None = None,
) -> tuple[float, float, float]:
    """Rows per second over the whole model's, and both, from text to label; arms take turns."""
    whole = Cascade(cascade.runtime, [None] * (len(cascade.runtime.levels) - 1))
    arms = (cascade, whole)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        if progress:
            progress("measuring the speed", turn, turns)
        for place in (0, 1) if turn % 2 else (1, 0):
            started = time.perf_counter()
            arms[place].predict(texts, batch=batch)
            times[place].append(time.perf_counter() - started)
    speed = statistics.median(slow / fast for fast, slow in zip(*times, strict=True))
    own, other = (len(texts) / statistics.median(taken) for taken in times)
    return (speed if len(cascade.stages) > 1 else 1.0), own, other


def _by_class(
    labels: NDArray[np.int64], wrong: NDArray[np.bool_], classes: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Disagreements and rows by the class that the whole model gives."""
    return {
        name: (int(wrong[labels == n].sum()), int((labels == n).sum()))
        for n, name in enumerate(classes)
        if (labels == n).any()
    }


def _by_length(lengths: NDArray[np.int64], wrong: NDArray[np.bool_]) -> dict[str, tuple[int, int]]:
    """Disagreements and rows by the number of tokens."""
    found, above = {}, 0
    for limit in (*_LENGTHS, int(max(lengths.max(), _LENGTHS[-1])) + 1):
        inside = (lengths > above) & (lengths <= limit)
        if inside.any():
            found[f"{above + 1}-{limit}"] = (int(wrong[inside].sum()), int(inside.sum()))
        above = limit
    return found
