"""Two methods on the same test rows: how far apart they are, how sure that is, and the word for it.

All differences are in points of accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.study.answers import Answers, check_same_rows
from apportion.study.report.query import Records

MARGIN = 0.3  # so many points below another is still at least as good
ENOUGH_SEEDS = 4  # to resample them; fewer are shown one by one
RESAMPLES = 10_000
HOW_PAIRED = (
    f"The 95 % interval is of a bootstrap, {RESAMPLES:,} resamples of the test rows and, from "
    f"{ENOUGH_SEEDS} seeds on, of the seeds; fewer are shown one by one. Better: its lower end is "
    f"above 0; at least as good: above -{MARGIN}; worse: its upper end is below 0."
)
Kept = Mapping[str, Answers]  # by the key of their stage
NONE_KEPT: Kept = MappingProxyType({})
BETTER, AS_GOOD, WORSE, NOT_TOLD_APART = "better", "at least as good", "worse", "not told apart"
WORDS = (BETTER, AS_GOOD, WORSE, NOT_TOLD_APART)
_CHUNK = 1_000  # resamples at a time: a few megabytes


@dataclass(frozen=True)
class Difference:
    """The mean of a difference over seeds, with its 95 % interval, in points to two digits."""

    mean: float
    low: float
    high: float
    by_seed: tuple[float, ...]

    @property
    def word(self) -> str:
        """What may be said of it. The ends are those that are shown."""
        if self.low > 0:
            return BETTER
        if self.high < 0:
            return WORSE  # even inside the margin
        return AS_GOOD if self.low > -MARGIN else NOT_TOLD_APART

    @property
    def interval(self) -> str:
        """The interval as people read it."""
        return f"{self.low:+.2f} to {self.high:+.2f}"

    @property
    def seeds(self) -> str:
        """Each seed's own difference, where there are too few to resample them."""
        if len(self.by_seed) >= ENOUGH_SEEDS:
            return ""
        return ", ".join(f"{value:+.2f}" for value in self.by_seed)


def resampled(rows: NDArray[np.floating[Any]]) -> Difference:
    """The mean of differences [seeds, rows], each in -1 to 1, with the interval of a bootstrap.

    Rows are drawn anew, the same for all seeds, and from four seeds on the seeds, too. What only
    one row of one seed has counts in both draws, so the interval is rather too wide.
    """
    # Rows that are alike are drawn together: how many of each kind is all that matters.
    kinds, counts = np.unique(rows, axis=1, return_counts=True)
    low, high = _ends(kinds.astype(np.float64).tobytes(), tuple(counts.tolist()))
    own = rows.mean(axis=1)
    mean, low, high, *by_seed = (round(100 * float(v), 2) for v in (own.mean(), low, high, *own))
    return Difference(mean, low, high, tuple(by_seed))


@lru_cache(maxsize=1024)  # claims and tables ask for the same ones
def _ends(data: bytes, counts: tuple[int, ...]) -> tuple[float, float]:
    """The ends of the interval, by the kinds of rows [seeds, kinds] and how many there are of each.

    The generator's seed is fixed: the same answers always give the same interval.
    """
    kinds = np.frombuffer(data).reshape(-1, len(counts))
    seeds, rows = len(kinds), sum(counts)
    draw = np.random.default_rng(0)
    means = []
    for _ in range(RESAMPLES // _CHUNK):
        drawn = draw.multinomial(rows, np.array(counts) / rows, size=_CHUNK)  # [resamples, kinds]
        by_seed = drawn @ kinds.T / rows  # [resamples, seeds]
        if seeds >= ENOUGH_SEEDS:
            by_seed *= draw.multinomial(seeds, np.full(seeds, 1 / seeds), size=_CHUNK)
        means.append(by_seed.mean(axis=1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)


def mcnemar(mine: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    """The exact two-sided p-value that rows which only one has right are as often either's."""
    from scipy import stats  # slow to import

    ours_alone, theirs_alone = int((mine & ~theirs).sum()), int((theirs & ~mine).sum())
    if ours_alone == theirs_alone == 0:
        return 1.0
    return float(stats.binomtest(ours_alone, ours_alone + theirs_alone, 0.5).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of several tests, adjusted by Holm for being several, in the order given."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, n in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[n]))
        adjusted[n] = largest
    return adjusted


@dataclass(frozen=True)
class Paired:
    """Which rows two methods have right, at the same budgets and seeds: [budgets, seeds, rows]."""

    mine: NDArray[np.bool_]
    theirs: NDArray[np.bool_]

    def difference(self, budget: int | None = None) -> Difference:
        """How far apart they are on average over budgets, or at the one of that place."""
        apart = self.mine.astype(np.int8) - self.theirs.astype(np.int8)
        return resampled(apart.mean(axis=0) if budget is None else apart[budget].astype(float))

    def p_values(self) -> NDArray[np.float64]:
        """McNemar's p-values [budgets, seeds], in each seed adjusted for its several budgets."""
        tested = [
            [mcnemar(*seed) for seed in zip(*budget, strict=True)]
            for budget in zip(self.mine, self.theirs, strict=True)
        ]
        return np.array([holm(seed) for seed in zip(*tested, strict=True)]).T


def pair(mine: Sequence[Records], theirs: Sequence[Records], *, answers: Kept) -> Paired | None:
    """Two methods' answers by their points, a list a budget; none, if some were not kept.

    Seeds that do not have all the points of both are left out.
    """
    points = [{(p["data_seed"], p["seed"]): p for p in found} for found in (*mine, *theirs)]
    seeds = sorted(set.intersection(*map(set, points))) if points else []
    used = [[points_of[seed] for seed in seeds] for points_of in points]
    kept = [[_kept(point, answers) for point in found] for found in used]
    if not seeds or any(one is None for found in kept for one in found):
        return None
    check_same_rows(*(answers[point["stage"]].rows for found in used for point in found))
    right = np.array(kept)  # [budgets of both, seeds, rows]
    return Paired(right[: len(mine)], right[len(mine) :])


def _kept(point: Mapping[str, Any], answers: Kept) -> NDArray[np.bool_] | None:
    found = answers.get(point["stage"])
    where = point["form"], point["budget"]
    return found.right(*where) if found and where in found.said else None
