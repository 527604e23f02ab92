"""Policies: which rows run next, and at which level. Pure: no clock, no threads, no state.

Under load the *ladder* lowers budgets, one tier and one level at a time. `ladder` takes the lowest
rung at which every row that can still be on time will be. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apportion.serving.server.giving_up import given_up
from apportion.serving.server.setting import Plan, Setting, Waiting

# What runs can't be planned anew, so a batch takes a share of the time that the last row has, at
# most.
QUANTUM = 0.2
_LOOKED_AT = 128  # rows that may join a batch, at most: a plan is made for every batch

Policy = Callable[[float, Sequence[Waiting], Sequence[float], Setting], Plan | None]


def ladder(
    now: float, queue: Sequence[Waiting], busy: Sequence[float], setting: Setting
) -> Plan | None:
    """Earliest deadline first, at the lowest rung at which all that can be on time is.

    Rows of requests that can't be on time, even at their lowest level and with nobody else there,
    aim at `latest`, at that level. Rows past that too come last. `busy` says how long each other
    worker is taken.
    """
    if not queue:
        return None
    if len(queue) == 1 and (plan := _lone(now, queue[0], busy, setting)):
        return plan
    kinds, of_row = _kinds(queue)
    needs = _needs(kinds, of_row, queue, setting)
    order, aims, late = _in_order(now, queue, needs.own, needs.whole)
    # A kind twice: as it is on time, and as it is late, at its lowest level.
    places = of_row[order] + late * len(kinds)
    rung, fits = _lowest_rung(now, places, aims, kinds, busy, setting)
    if not fits:
        order, aims, late = _in_order(now, queue, needs.own, _most_in_time(now, needs, busy))
        places = of_row[order] + late * len(kinds)
    levels = _levels(kinds, rung, setting)
    ranked = _Ranked(
        [queue[place] for place in order],
        aims,
        late,
        np.array(levels)[places],
        _times(kinds, levels, setting)[places],
    )
    chosen = _batch(now, ranked, fits, busy, setting)
    return Plan(tuple(int(order[n]) for n in chosen), levels[places[0]], rung)


def _lone(now: float, row: Waiting, busy: Sequence[float], setting: Setting) -> Plan | None:
    """The plan of a row that waits by itself, if some rung leaves it time to spare.

    It is what the whole policy would say, in a fifth of the time: that row waits for it.
    """
    wait = sum(busy) / setting.workers
    for rung, named in enumerate(setting.rungs):
        level = min(max(named.get(row.tier, row.highest), row.lowest), row.highest)
        left = row.deadline - now - setting.seconds(1, row.length, level)
        if wait <= (1.0 - setting.reserved) * left + 1e-9:
            return Plan((0,), level, rung)
    return None


@dataclass(frozen=True)
class _Ranked:
    """The queue in the order in which its rows run, with what is known of each row."""

    rows: list[Waiting]
    aims: NDArray[np.float64]
    late: NDArray[np.bool_]
    levels: NDArray[np.float64]
    times: NDArray[np.float64]


# A plan is made for every batch, and a queue may be long: what is done for every row of it is done
# by NumPy where it can be.


def _kinds(queue: Sequence[Waiting]) -> tuple[list[Waiting], NDArray[np.int64]]:
    """Rows that differ in what decides their times, one of each, and which of them a row is."""
    numbers: dict[tuple[str, int, float, float], int] = {}
    kinds: list[Waiting] = []
    of_row = []
    for row in queue:
        key = row.tier, row.length, row.highest, row.lowest
        number = numbers.setdefault(key, len(kinds))
        if number == len(kinds):
            kinds.append(row)
        of_row.append(number)
    return kinds, np.array(of_row)


def _levels(kinds: Sequence[Waiting], rung: int, setting: Setting) -> list[float]:
    """The level of each kind at a rung: that of its tier, inside its terms. Then of late ones."""
    named = setting.rungs[rung]
    on_time = [min(max(named.get(k.tier, k.highest), k.lowest), k.highest) for k in kinds]
    return on_time + [kind.lowest for kind in kinds]


def _times(
    kinds: Sequence[Waiting], levels: Sequence[float], setting: Setting
) -> NDArray[np.float64]:
    both = zip([*kinds, *kinds], levels, strict=True)
    return np.array([setting.seconds(1, kind.length, level) for kind, level in both])


@dataclass(frozen=True)
class _Needs:
    """The least that rows and requests take, at their lowest levels, with nobody else there.

    A request takes as long as its longest row alone. Of the workers, no row takes less than its
    share of the largest batch.
    """

    own: NDArray[np.float64]  # of each row
    request: NDArray[np.int64]  # which request a row is of
    together: NDArray[np.float64]  # of each request: of the workers
    longest: NDArray[np.float64]  # of each request: of its rows
    due: NDArray[np.float64]  # of each request

    @property
    def whole(self) -> NDArray[np.float64]:
        """Of each row: the time in which all rows of its request can end."""
        return np.maximum(self.together, self.longest)[self.request]


def _needs(
    kinds: Sequence[Waiting], of_row: NDArray[np.int64], queue: Sequence[Waiting], setting: Setting
) -> _Needs:
    most = setting.max_batch
    alone = [setting.seconds(1, kind.length, kind.lowest) for kind in kinds]
    share = [setting.seconds(most, kind.length, kind.lowest) / most for kind in kinds]
    own = np.array(alone)[of_row]
    first_come = -len(queue)  # of rows by themselves, as of requests, the first ones come first
    named = [first_come + n if row.request is None else row.request for n, row in enumerate(queue)]
    _, first, request = np.unique(named, return_index=True, return_inverse=True)
    together = np.bincount(request, weights=np.array(share)[of_row]) / setting.workers
    longest = np.zeros(len(together))
    np.maximum.at(longest, request, own)
    due = np.array([queue[place].deadline for place in first])
    return _Needs(own, request, together, longest, due)


def _most_in_time(now: float, needs: _Needs, busy: Sequence[float]) -> NDArray[np.float64]:
    """Of each row, as `whole`; of requests that are given up so that others are on time, for ever.

    Where not all can be on time, batches would take rows of more requests than can be ended.
    """
    whole = np.maximum(needs.together, needs.longest)
    hopeful = np.flatnonzero(now + whole <= needs.due)
    start = now + sum(busy) / (1 + len(busy))
    whole[hopeful[given_up(start, needs.together[hopeful], needs.due[hopeful])]] = np.inf
    return whole[needs.request]


def _in_order(
    now: float,
    queue: Sequence[Waiting],
    own: NDArray[np.float64],
    whole: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """Places by what each row aims at; those aims, and which rows are late, in that order."""
    count = len(queue)
    deadlines = np.fromiter((row.deadline for row in queue), np.float64, count)
    latest = np.fromiter((row.latest for row in queue), np.float64, count)
    numbers = np.fromiter((row.number for row in queue), np.int64, count)
    late = now + whole > deadlines
    aims = np.where(late, latest, deadlines)
    aims[now + own > aims] = np.inf  # past both: when there is time
    order = np.lexsort((numbers, aims))
    return order, aims[order], late[order]


def _lowest_rung(
    now: float,
    places: NDArray[np.int64],
    aims: NDArray[np.float64],
    kinds: Sequence[Waiting],
    busy: Sequence[float],
    setting: Setting,
) -> tuple[int, bool]:
    """The lowest rung at which every row meets its aim with time to spare, or the last one.

    Also whether all meet their aims there, be it with nothing to spare.
    """
    low, middle, high = 0, 0, len(setting.rungs)
    while low < high:  # what fits at a rung fits at all that follow; mostly it is the first
        times = _times(kinds, _levels(kinds, middle, setting), setting)[places]
        if _all_fit(now, times, aims, busy, setting, reserved=setting.reserved):
            high = middle
        else:
            low = middle + 1
        middle = (low + high) // 2
    if low < len(setting.rungs):
        return low, True
    times = _times(kinds, _levels(kinds, low - 1, setting), setting)[places]
    return low - 1, _all_fit(now, times, aims, busy, setting)


def _all_fit(
    now: float,
    times: NDArray[np.float64],
    aims: NDArray[np.float64],
    busy: Sequence[float],
    setting: Setting,
    *,
    reserved: float = 0.0,
) -> bool:
    """Whether rows, one after the other, all end by their aims, with a share of their time left.

    A row starts when all before it are shared out: no later than their sum over the workers.
    """
    waits = (sum(busy) + np.cumsum(times) - times) / setting.workers
    return bool((waits <= (1.0 - reserved) * (aims - now - times) + 1e-9).all())


def _batch(
    now: float, ranked: _Ranked, fits: bool, busy: Sequence[float], setting: Setting
) -> list[int]:
    """The head, and rows of its level that join it without making any row late; their ranks."""
    rows, aims, times = ranked.rows, ranked.aims, ranked.times
    head, level = rows[0], float(ranked.levels[0])
    end, length = now + setting.seconds(1, head.length, level), head.length
    idle = 1 + sum(taken <= 0.0 for taken in busy)  # workers that could share the queue
    most = min(setting.max_batch, -(-len(rows) // idle))
    due = aims[0] if end <= aims[0] else np.inf
    if not ranked.late[0]:  # where even the first is late, answers a second are all that helps
        due = min(due, now + QUANTUM * (max(row.deadline for row in rows) - now))
    chosen = [0]
    left = np.ones(len(rows), bool)
    left[0] = False
    for n in _candidates(ranked):
        if len(chosen) >= most:
            break
        longer = max(length, rows[n].length)
        later = now + setting.seconds(len(chosen) + 1, longer, level)
        # Never slower than one after the other, and nobody behind is overtaken at his expense.
        if later > due + 1e-9 or later > end + times[n] + 1e-9:
            continue
        left[n] = False
        ahead = left[:n].any()
        if fits and ahead and not _all_fit(later, times[left], aims[left], busy, setting):
            left[n] = True
            continue
        chosen.append(n)
        end, length = later, longer
    return sorted(chosen)


def _candidates(ranked: _Ranked) -> list[int]:
    """Ranks of rows that might join the head: of its level, those of nearest length first.

    Rows that are late anyway come after those that are not.
    """
    head, level = ranked.rows[0], ranked.levels[0]
    if head.alone:
        return []
    same = np.flatnonzero(ranked.levels == level)[1 : 1 + _LOOKED_AT].tolist()
    same = [n for n in same if not ranked.rows[n].alone]
    return sorted(same, key=lambda n: (ranked.late[n], abs(ranked.rows[n].length - head.length)))
