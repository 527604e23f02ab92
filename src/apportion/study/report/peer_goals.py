"""Records of a comparison of runtimes → its goals, beside what each subject reached."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from apportion.study.comparison import Comparison, Goal
from apportion.study.report.query import Records, processors
from apportion.study.report.table import Table

_NOT_YET = "not yet"
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Reached:
    """What was measured for a goal; ends where it is one number with an interval."""

    value: float
    low: float | None = None
    high: float | None = None


def read_goal(goal: Goal, records: Records) -> Reached | None:
    """What the records of one subject say of a goal, or nothing."""
    if goal.untested:
        return None
    return _MEASURES[goal.measure].read(goal, records)


@dataclass(frozen=True)
class _Reading:
    """How a goal's measure is read from records, and shown."""

    read: Callable[[Goal, Records], Reached | None]
    shown: str = "{:.2f}"
    unit: str = ""


def _ratio(goal: Goal, records: Records) -> list[float] | None:
    where = (goal.arm, goal.level or 1.0, goal.shape, goal.threads)
    names = ("arm", "level", "shape", "threads")
    found = [r for r in of_kind(records, "peer_latency") if tuple(r[n] for n in names) == where]
    ratio: list[float] | None = found[0]["over"].get(goal.over) if found else None
    return ratio


def _speedup(goal: Goal, records: Records) -> Reached | None:
    ratio = _ratio(goal, records)
    return Reached(*ratio) if ratio else None


def _slower(goal: Goal, records: Records) -> Reached | None:
    ratio = _ratio(goal, records)
    if not ratio:
        return None
    value, low, high = (100 * (1 / one - 1) for one in ratio)
    return Reached(value, high, low)


_STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.mean,
    "lowest": min,
    "highest": max,
}


def _of_answers(value: Callable[[Record, Records], float | None]) -> Callable[..., Reached | None]:
    """A statistic over levels of what an arm answered."""

    def read(goal: Goal, records: Records) -> Reached | None:
        own = [r for r in of_kind(records, "peer_answers") if r["arm"] == goal.arm]
        own = [r for r in own if goal.level in (None, r["level"])]
        values = [value(r, records) for r in own]
        known = [one for one in values if one is not None]
        if not known or len(known) < len(values):
            return None
        return Reached(_STATISTICS[goal.statistic](known))

    return read


def _lost(record: Record, records: Records) -> float | None:
    """Points of accuracy below the arm that it has to answer like."""
    levels = (record["level"], 1.0)
    beside = [
        r
        for level in levels
        for r in of_kind(records, "peer_answers")
        if (r["arm"], r["level"]) == (record["beside"], level)
    ]
    return 100 * float(beside[0]["accuracy"] - record["accuracy"]) if beside else None


def _bytes(name: str) -> Callable[[Goal, Records], Reached | None]:
    def read(goal: Goal, records: Records) -> Reached | None:
        held = {r["served"]: r[name] for r in of_kind(records, "peer_memory")}
        if goal.arm not in held or goal.over not in held:
            return None
        return Reached(held[goal.arm] / held[goal.over])

    return read


def _switching(goal: Goal, records: Records) -> Reached | None:
    found = [r for r in of_kind(records, "peer_switching") if r["arm"] == goal.arm]
    names = ("slower", "low", "high")
    return Reached(*(100 * (found[0][name] - 1) for name in names)) if found else None


def _throughput(goal: Goal, records: Records) -> Reached | None:
    found = [r for r in of_kind(records, "peer_throughput") if r["arm"] == goal.arm]
    return Reached(*(100 * found[0][name] for name in ("share", "low", "high"))) if found else None


_MEASURES: dict[str, _Reading] = {
    "speedup": _Reading(_speedup, unit="x"),
    "slower": _Reading(_slower, "{:.1f}", " % slower"),
    "difference": _Reading(_of_answers(lambda r, _: r["difference"]), "{:.2g}"),
    "lost": _Reading(_of_answers(_lost), unit=" points"),
    "agreement": _Reading(_of_answers(lambda r, _: 100 * r["agreement"]), unit=" %"),
    "alone": _Reading(_of_answers(lambda r, _: 100 * r["alone"]), "{:.3f}", " %"),
    "file": _Reading(_bytes("file_bytes"), "{:.3f}", "x"),
    "resident": _Reading(_bytes("resident_bytes"), "{:.3f}", "x"),
    "switching": _Reading(_switching, "{:.1f}", " % slower"),
    "throughput": _Reading(_throughput, "{:.1f}", " %"),
}


def peer_goal_table(plan: Comparison, records: Records) -> Table:
    """The goals of a comparison, with what each subject reached."""
    rows = []
    for goal in plan.goals:
        cells, met = [], []
        for subject in plan.subjects:
            found = read_goal(goal, [r for r in records if r["subject"] == subject])
            cells.append("–" if found is None else _shown(goal, found))
            met.append(_NOT_YET if found is None else "yes" if is_met(goal, found) else "no")
        verdict = next((one for one in ("no", _NOT_YET) if one in met), "yes")
        rows.append((goal.says, _asked(goal), *cells, goal.untested or verdict))
    note = (
        "Judged as shown, on the number before the interval; met, if every subject does. "
        f"{measured_on(records)}"
    )
    return Table("goals", "Goals", ("goal", "asked", *plan.subjects, "met"), tuple(rows), note)


def is_met(goal: Goal, found: Reached) -> bool:
    """Whether what was reached lies within a goal's bounds, to the digits shown."""
    value = float(_MEASURES[goal.measure].shown.format(found.value))
    low, high = goal.at_least, goal.at_most
    return (low is None or value >= low) and (high is None or value <= high)


def _shown(goal: Goal, found: Reached) -> str:
    reading = _MEASURES[goal.measure]
    text = reading.shown.format(found.value) + reading.unit
    if found.low is None or found.high is None:
        return text
    return f"{text} ({reading.shown.format(found.low)} – {reading.shown.format(found.high)})"


def _asked(goal: Goal) -> str:
    if goal.untested:
        return "–"
    ends = (("≥", goal.at_least), ("≤", goal.at_most))
    unit = _MEASURES[goal.measure].unit
    return " and ".join(f"{sign} {end:g}{unit}" for sign, end in ends if end is not None)


def of_kind(records: Records, kind: str) -> list[Record]:
    """The records of one kind."""
    return [r for r in records if r["kind"] == kind]


def measured_on(records: Records) -> str:
    """The processors behind some records, in a sentence."""
    timed = [r for r in records if r["kind"] != "peer_left_out"]
    return f"Measured on {processors(timed)}." if timed else "Not measured yet."
