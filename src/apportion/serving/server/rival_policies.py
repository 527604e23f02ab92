"""Policies to compare the ladder with, and all of them by name."""

from __future__ import annotations

from collections.abc import Sequence

from apportion.serving.server.policy import Policy, ladder
from apportion.serving.server.setting import BUCKET, Plan, Setting, Waiting
from apportion.serving.server.terms import level_below

ALIKE = 1.25  # lengths in one batch differ by less than this factor


def slackfit(
    now: float, queue: Sequence[Waiting], busy: Sequence[float], setting: Setting
) -> Plan | None:
    """SlackFit's rule: the head's slack buys a bucket of latency; inside it, the largest batch.

    It looks at one deadline and knows no tiers. Rows whose terms exclude its level stay behind.
    """
    if not queue:
        return None
    order = sorted(range(len(queue)), key=lambda place: (queue[place].deadline, place))
    head = queue[order[0]]
    most = 1 if head.alone else min(len(queue), setting.max_batch)
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size < most] + [most]
    points = [
        (setting.seconds(size, head.length, level), size, level)
        for level in setting.levels
        if head.lowest <= level <= head.highest
        for size in sizes
    ]
    fastest, slowest = min(points)[0], max(points)[0]
    width = (slowest - fastest) / 16 or 1.0
    slack = head.deadline - now
    bucket = max((int((p[0] - fastest) / width) for p in points if p[0] <= slack), default=0)
    inside = [p for p in points if int((p[0] - fastest) / width) == bucket and p[0] <= slack]
    _, size, level = max(inside or [min(points)], key=lambda point: (point[1], point[2]))
    rows = [
        place
        for place in order
        if queue[place].lowest <= level <= queue[place].highest
        and (place == order[0] or may_join(queue[place], head))
    ]
    return Plan(tuple(rows[:size]), level, 0)


def static(
    now: float, queue: Sequence[Waiting], busy: Sequence[float], setting: Setting
) -> Plan | None:
    """One budget for all, whatever the load; earliest deadline first."""
    if not queue:
        return None
    order = sorted(range(len(queue)), key=lambda place: (queue[place].deadline, place))
    wanted = level_below(setting.rule.budget, setting.levels) or setting.levels[0]
    level = {p: min(max(wanted, queue[p].lowest), queue[p].highest) for p in order}
    head = queue[order[0]]
    rows = [
        place
        for place in order
        if level[place] == level[order[0]] and (place == order[0] or may_join(queue[place], head))
    ]
    return Plan(tuple(rows[: setting.max_batch]), level[order[0]], 0)


def may_join(row: Waiting, head: Waiting) -> bool:
    """Whether two rows may share a batch."""
    near = row.length <= ALIKE * head.length and head.length <= ALIKE * row.length
    # The shortest lengths are one or two buckets apart, and cost about the same.
    return not row.alone and not head.alone and (near or max(row.length, head.length) <= 2 * BUCKET)


NAMED: dict[str, Policy] = {"ladder": ladder, "slackfit": slackfit, "static": static}
