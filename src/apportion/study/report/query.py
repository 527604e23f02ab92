"""What tables are made of: choosing records, and putting numbers into words."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from apportion.study.experiment import Experiment

Records = Sequence[Mapping[str, Any]]

# Records that agree in these measured the same thing.
_SAME = ("kind", "stage", "form", "budget", "batch", "protocol", "device")


def select(records: Records, **where: Any) -> list[Mapping[str, Any]]:
    """The records whose fields have these values, the newest only of those measured twice."""
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for record in records:
        if where.items() <= record.items():
            found[tuple(map(record.get, _SAME))] = record
    return list(found.values())


def timings(records: Records, **where: Any) -> list[Mapping[str, Any]]:
    """Latencies by one protocol: the paper's, padded, where a study has several."""
    found = select(records, kind="latency", **where)
    return [record for record in found if record.get("protocol", "padded") == "padded"]


def points_at(
    records: Records, method: str | None, form: str, budget: float
) -> list[Mapping[str, Any]]:
    """The accuracies of a model as it is evaluated or timed.

    Skipping and cutting compute what the hard mask does, so they have its accuracy where their own
    was not measured.
    """
    for same in {"skip": ("hard",), "cut": ("cut", "hard")}.get(form, (form,)):
        found = select(records, kind="point", method=method, form=same, budget=budget)
        if found:
            return found
    return []


def dense_points(records: Records) -> list[Mapping[str, Any]]:
    """The dense model's points: of several plain models, of the one that is called `dense`."""
    found = select(records, kind="point", form="dense")
    return [point for point in found if point["method"] == "dense"] or found


def forms_of(records: Records, method: str | None) -> set[str]:
    """The forms that a method's models have: soft and hard with gates, cut alone with one order."""
    return {point["form"] for point in select(records, kind="point", method=method)}


def main_method(experiment: Experiment) -> str | None:
    """The method whose checkpoint people would use: the first timed, or the last elastic."""
    elastic = [s for s in experiment.stages if s.recipe and s.recipe.objective != "dense"]
    elastic = elastic or [s for s in experiment.stages if s.nested]  # converted, not trained
    general = [s for s in elastic if s.only is None]
    timed = [s for s in general if s.latency]
    chosen = timed[:1] or general[-1:]
    return chosen[0].method if chosen else None


def methods_of(experiment: Experiment) -> list[str]:
    """The methods in the order of the file."""
    return list(dict.fromkeys(stage.method for stage in experiment.stages))


def asked(budget: float) -> str:
    """A budget as people write it: two digits, or as many as it has."""
    return f"{budget:.2f}" if round(budget, 2) == budget else f"{budget:g}"


def mean_sd(values: Iterable[float], digits: int) -> str:
    """Mean ± sample standard deviation (n - 1), or the one value."""
    numbers = list(values)
    if not numbers:
        return "–"
    text = f"{statistics.mean(numbers):.{digits}f}"
    if len(numbers) > 1:
        text += f" ± {statistics.stdev(numbers):.{digits}f}"
    return text


def beside(values: Sequence[float], paper: str, digits: int = 2) -> str:
    """How far the mean of some values is from what the paper prints, to the digits shown."""
    printed = re.match(r"-?\d+(\.\d+)?", paper)
    if not values or not printed:
        return "–"
    return f"{statistics.mean(values) - float(printed[0]):+.{digits}f}"


def percent(points: Iterable[Mapping[str, Any]]) -> str:
    """Accuracy of some points in percent."""
    return mean_sd([100 * point["accuracy"] for point in points], 2)


def differences(ours: Records, theirs: Records) -> list[float]:
    """Differences in points between runs of the same seeds, at the same budget or to the dense."""
    found = {_cell(p): p for p in theirs}
    pairs = []
    for point in ours:
        other = found.get(_cell(point)) or found.get((*_cell(point)[:2], None))
        if other is not None:
            pairs.append(100 * (point["accuracy"] - other["accuracy"]))
    return pairs


def _cell(point: Mapping[str, Any]) -> tuple[int, int, float | None]:
    budget = None if point["form"] == "dense" else point["budget"]
    return point["data_seed"], point["seed"], budget


def difference(ours: Records, theirs: Records) -> str:
    """How far accuracies are apart, seed by seed, in points."""
    pairs = differences(ours, theirs)
    if not pairs:
        return "–"
    spread = f" ± {statistics.stdev(pairs):.2f}" if len(pairs) > 1 else ""
    return f"{statistics.mean(pairs):+.2f}{spread}"


def times(latencies: Iterable[Mapping[str, Any]]) -> str:
    """Speed-up of some latencies."""
    found = list(latencies)
    return mean_sd([r["speedup"] for r in found], 2).replace(" ±", "x ±") + (
        "x" if len(found) == 1 else ""
    )


BY_MACS = (
    "By MACs is the speed-up if every multiply-accumulate took the same time and nothing else took "
    "any: an estimate, which models with much attention can pass."
)
INTERVAL = "in parentheses the widest of the seeds' 95 % intervals"


def interval(latencies: Sequence[Mapping[str, Any]]) -> str:
    """The widest of the seeds' 95 % intervals of a speed-up."""
    if not latencies:
        return "–"
    low, high = min(r["low"] for r in latencies), max(r["high"] for r in latencies)
    return f"{low:.2f} – {high:.2f}"


def times_within(latencies: Sequence[Mapping[str, Any]]) -> str:
    """Speed-up of some latencies with its interval."""
    return f"{times(latencies)} ({interval(latencies)})" if latencies else "–"


def processors(latencies: Iterable[Mapping[str, Any]]) -> str:
    """What some latencies were measured on."""
    names = (
        r.get("device_name", f"{r['machine']['processor']} ({r['machine']['capability']})")
        for r in latencies
    )
    return " and ".join(dict.fromkeys(names))


def speed_note(against: str, latencies: Sequence[Mapping[str, Any]]) -> str:
    """What to know of the speeds in a table of budgets, if it has any."""
    if not latencies:
        return ""
    padded = ", rows padded" * any("protocol" in r for r in latencies)
    return (
        f"Speed is against {against}, one thread{padded}, {processors(latencies)}; {INTERVAL}. "
        f"{BY_MACS}"
    )


def of_medians(latencies: Iterable[Mapping[str, Any]], records: Records) -> str:
    """The dense model's median time over that of some latencies, seed by seed.

    Records that do not hold it are of a run whose dense model has a record of its own.
    """
    dense = {
        _run_of(r): r["median_ms"]
        for r in records
        if r["kind"] == "latency" and r["form"] == "dense"
    }
    ratios = []
    for record in latencies:
        if "of_medians" in record:
            ratios.append(record["of_medians"])
        elif _run_of(record) in dense:
            ratios.append(dense[_run_of(record)] / record["median_ms"])
    return mean_sd(ratios, 2).replace(" ±", "x ±") + ("x" if len(ratios) == 1 else "")


def _run_of(latency: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(latency.get(name) for name in ("stage", "protocol", "device", "batch"))


def by_macs(latencies: Records) -> str:
    """Speed-up that multiply-accumulates let expect."""
    return f"{statistics.mean(r['bound'] for r in latencies):.2f}x" if latencies else "–"


def over_fused(latencies: Iterable[Mapping[str, Any]]) -> str:
    """Speed-up of some latencies against the dense model with fused sums, with its interval."""
    found = [r["over_fused"] for r in latencies if "over_fused" in r]
    return f"{times(found)} ({interval(found)})" if found else "–"


def seeds_of(records: Records, method: str | None) -> str:
    """How many runs a number stands for, in words."""
    count = len({(r["data_seed"], r["seed"]) for r in select(records, kind="point", method=method)})
    return "one seed" if count == 1 else f"mean ± sample standard deviation over {count} seeds"
