"""The statistics of a guarantee: exact tails, and tests in a fixed order. Numbers in, numbers out.

The loss is 0 or 1 (an answer is the whole model's, or it is not), so its tails are exact: binomial
for rows that are drawn from a stream, hypergeometric for rows that are drawn from one file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.extras import require


def check_promise(disagree_at_most: float, confidence: float) -> tuple[float, float]:
    """Epsilon and delta of a promise; numbers outside (0, 1) are refused."""
    if not 0.0 < disagree_at_most < 1.0:
        raise ValueError(
            "the share of answers that may differ is between 0 and 1, such as 0.01, "
            f"not {disagree_at_most:g}"
        )
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence is between 0 and 1, such as 0.95, not {confidence:g}")
    return disagree_at_most, 1.0 - confidence


def rows_needed(epsilon: float, delta: float) -> int:
    """The fewest rows that can certify anything: so many without one disagreement."""
    each = math.log1p(-epsilon)  # 1 - ε itself would be rounded away where ε is tiny

    def enough(rows: int) -> bool:
        return math.exp(rows * each) <= delta

    count = max(1, math.ceil(math.log(delta) / each))
    # The quotient may be rounded to either side of a whole number.
    if count > 1 and enough(count - 1):
        return count - 1
    return count if enough(count) else count + 1


def binomial_tail(disagreements: ArrayLike, rows: int, epsilon: float) -> NDArray[np.float64]:
    """P(X ≤ k) of so many rows, if each differs with probability ε: the p-value of `risk > ε`."""
    special = require("scipy.special")  # slow to import

    return np.asarray(special.bdtr(disagreements, rows, epsilon), np.float64)


def binomial_bound(disagreements: int, rows: int, delta: float) -> float:
    """The upper end of the exact (Clopper-Pearson) one-sided interval of a share."""
    special = require("scipy.special")

    if disagreements >= rows:
        return 1.0
    return float(special.betaincinv(disagreements + 1, rows - disagreements, 1.0 - delta))


def hypergeometric_tail(
    disagreements: ArrayLike, rows: int, *, population: int, differing: int
) -> NDArray[np.float64]:
    """P(X ≤ k) of rows drawn without replacement, if so many of the population differ."""
    asked = np.asarray(disagreements, np.int64)
    if differing > population:  # can't be, so any draw speaks against it
        return np.zeros(asked.shape)
    fewest, most = max(0, rows - (population - differing)), min(rows, differing)
    counts = np.arange(fewest, most + 1)
    ways = _log_choose(differing, counts) + _log_choose(population - differing, rows - counts)
    below = np.cumsum(np.exp(ways - _log_choose(population, np.array(rows))))
    places = np.clip(asked - fewest, -1, most - fewest)
    return np.where(places < 0, 0.0, np.minimum(1.0, below[places]))


def _log_choose(things: int, taken: NDArray[np.int64]) -> NDArray[np.float64]:
    special = require("scipy.special")

    found: NDArray[np.float64] = (
        special.gammaln(things + 1.0)
        - special.gammaln(taken + 1.0)
        - special.gammaln(things - taken + 1.0)
    )
    return found


def draw_needed(population: int, differing: int, delta: float) -> int | None:
    """The fewest drawn rows that can certify that not so many of a population differ.

    None where even all of them could not.
    """
    if not 0 < differing <= population:
        return None
    low, high = 1, population
    while low < high:
        middle = (low + high) // 2
        found = hypergeometric_tail(0, middle, population=population, differing=differing)
        if float(found) <= delta:
            high = middle
        else:
            low = middle + 1
    return low


def last_certified(tails: Iterable[float], delta: float) -> int | None:
    """The last hypothesis that is rejected when they are tested in order; None if none is.

    Testing stops at the first that is not rejected. The chance to reject a true one is then at
    most delta for all of them together, however many there are: to do so, the first true one has to
    be rejected.
    """
    last = None
    for place, tail in enumerate(tails):
        if tail > delta:
            break
        last = place
    return last
