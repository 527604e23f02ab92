"""Paths of thresholds, from "no text ends early" to bold ones, found on tuning rows.

Any search will do: the guarantee comes from other rows. This one tries every cascade of one or two
levels before the whole model, each with many thresholds. A third level rarely pays: a text is
computed anew at each, and few texts are left to fill its batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.serving.guarantees.cascade import Pool

TIES = 1e-4  # a margin of the whole model below which rounding may turn its answer
_LEAST = 1e-3  # no threshold is lower: there a level's own answer is next to a tie
_CUTS = 96  # thresholds that are tried per level
_STEPS = 40  # risks that are aimed at
_WORTH = 0.002  # a step of the path is this much cheaper than the one before


@dataclass(frozen=True)
class Step:
    """Thresholds on the path, and what tuning rows let expect of them.

    The price is a text's mean time, the whole model's being 1.
    """

    thresholds: tuple[float | None, ...]  # one per level below the whole model
    risk: float
    price: float


def find_path(pool: Pool, prices: Sequence[float], *, epsilon: float) -> list[Step]:
    """For some risks up to three times epsilon, the cheapest thresholds with no more of it.

    The first step is the whole model alone. `prices` are what the levels take per text.
    """
    relative = np.asarray(prices, float) / prices[-1]
    last, rows = len(relative) - 1, max(1, len(pool))
    differs = pool.differs(TIES)
    cuts = [_cuts(pool.margins[n], differs[n]) for n in range(last)]
    # How many of a level's cuts a row reaches: it ends there at cut c where the place is above c.
    reached = [np.searchsorted(cuts[n], pool.margins[n], side="right") for n in range(last)]
    spread = [_spread(pool.margins[n], differs[n]) for n in range(last)]
    allowed = 3.0 * epsilon * rows * np.linspace(0.0, 1.0, _STEPS + 1)[1:] ** 1.5
    found: list[Step] = []

    def keep(wrong: NDArray[np.float64], price: NDArray[np.float64], *levels: int) -> None:
        """The cheapest cuts of some levels for each number of disagreements that is allowed."""
        for count in allowed:
            fitting = np.where(wrong <= count, price, np.inf)
            place = np.unravel_index(int(fitting.argmin()), fitting.shape)
            if np.isfinite(fitting[place]):
                chosen: list[float | None] = [None] * last
                for level, cut in zip(levels, place, strict=True):
                    chosen[level] = float(cuts[level][cut])
                found.append(Step(tuple(chosen), float(wrong[place]) / rows, float(fitting[place])))

    for level in range(last):
        size, place = len(cuts[level]), reached[level]
        left = _count(place, size).cumsum()[:-1]
        losses = differs[level], spread[level]
        wrong = [_above(_count(place, size, loss)) for loss in losses]
        keep(np.maximum(*wrong), relative[level] + left / rows, level)
    for first, second in combinations(range(last), 2):
        # [cuts of the first, cuts of the second]: rows that end at neither, and that go wrong.
        sizes, places = (len(cuts[first]), len(cuts[second])), (reached[first], reached[second])
        left = _table(places, sizes).cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
        wrong = []
        for early, late in ((differs[first], differs[second]), (spread[first], spread[second])):
            passed = _table(places, sizes, late).cumsum(axis=0)[:-1]
            ended = passed.sum(axis=1)[:, None] - passed.cumsum(axis=1)[:, :-1]
            wrong.append(_above(_count(places[0], sizes[0], early))[:, None] + ended)
        going_on = _count(places[0], sizes[0]).cumsum()[:-1, None]
        price = relative[first] + going_on / rows * relative[second] + left / rows
        keep(np.maximum(*wrong), price, first, second)
    path = [Step((None,) * last, 0.0, 1.0)]
    for step in sorted(found, key=lambda one: (one.risk, one.price)):
        if step.price < path[-1].price - _WORTH:
            path.append(step)
    return path


def _spread(margins: NDArray[np.float64], differs: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Each disagreement shared out over the rows that are as sure, up to the next surer one.

    So many sure rows without a disagreement do not make for a risk of zero.
    """
    order = np.argsort(-margins, kind="stable")
    wrong = np.flatnonzero(differs[order])
    ends = np.append(wrong, len(order)) + 1  # one more behind the last row
    runs = np.diff(ends, prepend=0)
    shares = np.empty(len(order))
    shares[order] = np.repeat(1.0 / runs, runs)[: len(order)]
    return shares


def _cuts(margins: NDArray[np.float64], differs: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Thresholds to try: between rows, at even ranks, and right above rows that would be wrong."""
    ordered = np.unique(margins)
    if len(ordered) < 2:
        return np.maximum(ordered, _LEAST)
    between = (ordered[:-1] + ordered[1:]) / 2.0
    even = np.linspace(0, len(between) - 1, _CUTS // 2).round().astype(int)
    above = np.searchsorted(ordered, np.sort(margins[differs])[-_CUTS // 2 :])
    places = np.unique(np.concatenate([even, above[above < len(between)]]))
    return np.unique(np.maximum(between[places], _LEAST))


def _count(
    places: NDArray[np.int64], size: int, weights: NDArray[Any] | None = None
) -> NDArray[np.float64]:
    """How many rows, or how much of their weights, have each place [1 + cuts]."""
    return np.bincount(places, weights, minlength=size + 1).astype(float)


def _table(
    places: tuple[NDArray[np.int64], NDArray[np.int64]],
    sizes: tuple[int, int],
    weights: NDArray[Any] | None = None,
) -> NDArray[np.float64]:
    """The same for each pair of places [1 + cuts of the first, 1 + cuts of the second]."""
    wide = sizes[1] + 1
    flat = _count(places[0] * wide + places[1], (sizes[0] + 1) * wide - 1, weights)
    return flat.reshape(sizes[0] + 1, wide)


def _above(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of counts by place, those above each cut."""
    total: NDArray[np.float64] = counts.sum() - counts.cumsum()[:-1]
    return total
