"""Giving up: the fewest requests without which all others are on time (Moore and Hodgson)."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray


def given_up(
    start: float, work: NDArray[np.float64], due: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Places of the requests that are given up.

    They run one after the other, in the order of their deadlines. Whenever one would be late, the
    one that takes longest of those so far is given up: no other choice gives up fewer.
    """
    end = start
    kept: list[tuple[float, int]] = []  # the longest first
    lost = []
    for place in np.lexsort((np.arange(len(due)), due)):
        end += work[place]
        heapq.heappush(kept, (-work[place], -int(place)))
        if end > due[place]:
            longest, other = heapq.heappop(kept)
            end += longest
            lost.append(-other)
    return np.array(lost, np.int64)
