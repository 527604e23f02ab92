"""Replays in virtual time: what a policy would have done with arrivals, and the best there was.

Nothing sleeps and nothing is measured: batches take what the forecast says, times a given noise.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from apportion.serving.server.admission import Load, admit
from apportion.serving.server.policy import Policy
from apportion.serving.server.setting import Setting, Waiting
from apportion.serving.server.terms import Refusal


@dataclass(frozen=True)
class Arrival:
    """A row and when it came."""

    time: float
    row: Waiting


@dataclass(frozen=True)
class Served:
    """How a row ended. A row that was refused has no level and no end."""

    number: int
    tier: str
    level: float | None
    end: float | None
    on_time: bool
    rung: int = 0


def replay(
    arrivals: Sequence[Arrival],
    policy: Policy,
    *,
    setting: Setting,
    noise: Callable[[], float] = lambda: 1.0,
) -> list[Served]:
    """What becomes of each row, in the order of arrival."""
    coming = sorted(arrivals, key=lambda one: one.time)
    served: dict[int, Served] = {}
    queue: list[Waiting] = []
    load = Load()
    ends = [0.0] * setting.workers  # when each worker is free
    heapq.heapify(ends)
    now, next_one = 0.0, 0
    while next_one < len(coming) or queue:
        now = max(ends[0], coming[next_one].time) if not queue else max(ends[0], now)
        while next_one < len(coming) and coming[next_one].time <= now:
            row = coming[next_one].row
            next_one += 1
            try:
                load = admit([row], load, setting)
                queue.append(row)
            except Refusal:
                served[row.number] = Served(row.number, row.tier, None, None, False)
        if not queue:
            continue
        busy = [max(end - now, 0.0) for end in ends][1:]
        plan = policy(now, queue, busy, setting)
        assert plan is not None
        rows = [queue[place] for place in plan.rows]
        length = max(row.length for row in rows)
        end = now + noise() * setting.seconds(len(rows), length, plan.level)
        heapq.heapreplace(ends, end)
        for row in rows:
            load = load.plus(row, setting, -1)
            on_time = end <= row.deadline + 1e-9
            served[row.number] = Served(row.number, row.tier, plan.level, end, on_time, plan.rung)
        taken = set(plan.rows)
        queue = [row for place, row in enumerate(queue) if place not in taken]
    return [served[number] for number in sorted(served)]


def attainment(served: Sequence[Served]) -> float:
    """The share of all rows that were answered in time."""
    return sum(one.on_time for one in served) / max(len(served), 1)


def value(served: Sequence[Served], worth: Callable[[float], float]) -> float:
    """What the answers in time are worth together."""
    return sum(worth(one.level) for one in served if one.on_time and one.level is not None)


def optimum(
    arrivals: Sequence[Arrival], *, setting: Setting, worth: Callable[[float], float]
) -> float:
    """The most that answers in time could be worth to one worker that knows what will come.

    Exact: over every order, level and batch, for a dozen rows at most. Each set of rows that are
    settled keeps the ends and worths of which none beats another in both.
    """
    if len(arrivals) > 12 or setting.workers != 1:
        raise ValueError("the optimum is found for at most 12 rows and one worker")
    rows = [one.row for one in arrivals]
    times = [one.time for one in arrivals]
    fronts: dict[int, list[tuple[float, float]]] = {0: [(0.0, 0.0)]}
    best = 0.0
    for settled in range(1 << len(rows)):
        front = _front(fronts.pop(settled, []))
        if not front:
            continue
        best = max(best, max(got for _, got in front))
        open_rows = [n for n in range(len(rows)) if not settled >> n & 1]
        for size in range(1, min(len(open_rows), setting.max_batch) + 1):
            for batch in combinations(open_rows, size):
                after = settled | sum(1 << n for n in batch)
                found = _run(batch, rows, times, front, setting, worth)
                if found:
                    fronts.setdefault(after, []).extend(found)
    return best


def _run(
    batch: tuple[int, ...],
    rows: Sequence[Waiting],
    times: Sequence[float],
    front: Sequence[tuple[float, float]],
    setting: Setting,
    worth: Callable[[float], float],
) -> list[tuple[float, float]]:
    """Ends and worths after a batch at each level that its rows allow; all of it in time."""
    ready = max(times[n] for n in batch)
    due = min(rows[n].deadline for n in batch)
    length = max(rows[n].length for n in batch)
    low, high = max(rows[n].lowest for n in batch), min(rows[n].highest for n in batch)
    found = []
    for level in setting.levels:
        if low <= level <= high:
            takes = setting.seconds(len(batch), length, level)
            for end, got in front:
                later = max(end, ready) + takes
                if later <= due + 1e-9:
                    found.append((later, got + len(batch) * worth(level)))
    return found


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for end, got in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or got > kept[-1][1] + 1e-12:
            kept.append((end, got))
    return kept


def gaps(count: int, *, rate: float, cv2: float, seed: int) -> list[float]:
    """Gaps between arrivals: gamma with a mean and a squared coefficient of variation.

    1 is Poisson's; more of it makes bursts.
    """
    draw = random.Random(seed)
    return [draw.gammavariate(1.0 / cv2, cv2 / rate) for _ in range(count)]


def arrive(rows: Sequence[Waiting], spaces: Sequence[float]) -> list[Arrival]:
    """Rows at the times that gaps make; their deadlines count from there."""
    made, now = [], 0.0
    for row, space in zip(rows, spaces, strict=True):
        now += space
        due, last = now + row.deadline, now + row.latest
        made.append(Arrival(now, replace(row, deadline=due, latest=last)))
    return made
