"""Goals: what an experiment set out to reach, and what its records say of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from apportion.study.experiment import Experiment
from apportion.study.goals import Goal
from apportion.study.report.tables import BY_MACS, INTERVAL, Records, Table, interval, select


def goal_table(experiment: Experiment, records: Records) -> Table:
    """Each goal of the experiment with what was reached."""
    rows = []
    for goal in experiment.goals:
        found = _found(goal, records)
        asked = sum(s.only in (None, goal.budget) for s in experiment.stages_of(goal.method))
        if not found:
            reached, met = "not measured", "–"
        else:
            reached, held = _judge(goal, found, records)
            met = {True: "yes", False: "no", None: "not yet"}[held]
            if len(found) < asked:  # part of the runs prove nothing about all of them
                reached, met = f"{reached} ({len(found)} of {asked} runs)", "not yet"
        rows.append((goal.name, goal.asks(), reached, met))
    of_time = any(goal.is_of_time for goal in experiment.goals)
    note = f"Of speeds, {INTERVAL}; a goal is met by the mean. {BY_MACS}" * of_time
    return Table("goals", "Goals", ("goal", "asked", "reached", "met"), tuple(rows), note)


def _found(goal: Goal, records: Records) -> list[Mapping[str, Any]]:
    """The records that it is judged by, one a run."""
    of_method = {"kind": _kind(goal), "method": goal.method}
    if goal.over:
        of_method = {**of_method, "form": goal.form}
        return [r for r in select(records, **of_method) if r["budget"] == goal.over[0]]
    return select(records, **of_method, **_where(goal))


def _kind(goal: Goal) -> str:
    if goal.is_of_time:
        return "latency"
    if goal.is_of_switching:
        return "switching"
    if goal.training is not None:
        return "stage"
    if goal.throughput is not None:
        return "throughput"
    return "monotone" if goal.monotone else "point"


def _where(goal: Goal) -> dict[str, object]:
    if goal.monotone or goal.is_of_switching or goal.training is not None:
        return {}
    where: dict[str, object] = {"budget": goal.budget}
    if goal.throughput is None:
        where["form"] = goal.form
    return {**where, "protocol": goal.protocol} if goal.protocol else where


def _judge(goal: Goal, found: Records, records: Records) -> tuple[str, bool | None]:
    """What was reached, in words, and whether that is what the goal asks for, if it is known."""
    if goal.speedup is not None:
        mean = statistics.mean(r["speedup"] for r in found)
        reached = f"mean {mean:.2f}x, lowest {min(r['speedup'] for r in found):.2f}x"
        return f"{reached} ({interval(found)})", round(mean, 2) >= goal.speedup
    if goal.switch_us is not None:
        slowest = max(r["switch_us"] for r in found)
        extra = max(r["extra_bytes"] for r in found)
        reached = f"median {slowest:.2f} µs at most, {extra:,} bytes of weights more"
        return reached, slowest <= goal.switch_us and extra == 0
    if goal.memory is not None:
        more = max((r["extra_bytes"] + r["object_bytes"]) / r["whole_bytes"] for r in found)
        budgets = len(found[0]["budgets"])
        return f"{100 * more:.2f} % at most, for {budgets} budgets", more <= goal.memory
    if goal.training is not None:
        return _judge_training(goal, found, records)
    if goal.over:
        return _judge_average(goal, records)
    if goal.share_of_bound is not None:
        share = statistics.mean(r["speedup"] / r["bound"] for r in found)
        low = min(r["low"] / r["bound"] for r in found)
        high = max(r["high"] / r["bound"] for r in found)
        reached = f"{100 * share:.1f} % of it ({100 * low:.0f} to {100 * high:.0f} %)"
        return reached, share >= goal.share_of_bound
    if goal.share_of_cut is not None:
        where = {**_where(goal), "kind": "latency", "form": "cut"}
        cut = {r["stage"]: r["speedup"] for r in select(records, method=goal.method, **where)}
        share = statistics.mean(r["speedup"] / cut[r["stage"]] for r in found)
        return f"{100 * share:.1f} % of the cut model's speed", share >= goal.share_of_cut
    if goal.throughput is not None:
        share = statistics.mean(r["share"] for r in found)
        lowest = min(r["share"] for r in found)
        reached = f"mean {100 * share:.1f} %, lowest {100 * lowest:.1f} %"
        return reached, share >= goal.throughput
    if goal.monotone:
        held = sum(bool(r["monotone"]) for r in found)
        return f"{held} of {len(found)} seeds", held == len(found)
    accuracy = [100 * p["accuracy"] for p in found]
    mean, cost = statistics.mean(accuracy), statistics.mean(p["cost"] for p in found)
    reached = f"mean {mean:.2f} %, lowest {min(accuracy):.2f} %"
    enough = True
    if goal.against is not None:
        difference = _difference(goal, found, records)
        if difference is None:
            return f"{reached}; {goal.against} not measured", None
        reached += f": {difference:+.2f}"
        enough = round(difference, 2) >= -goal.within
    if goal.cost is not None:
        reached += f", at cost {cost:.3f}"
    return reached, (
        # Compared as shown: to two digits, and a cost to three.
        enough
        and (goal.mean_accuracy is None or round(mean, 2) >= goal.mean_accuracy)
        and (goal.every_accuracy is None or min(accuracy) > goal.every_accuracy)
        and (goal.cost is None or round(cost, 3) <= goal.cost)
    )


def _difference(goal: Goal, found: Records, records: Records) -> float | None:
    """Points that a method is above the one it is compared with, averaged over the seeds."""
    where = {"method": goal.against, "form": goal.against_form, "budget": goal.against_budget}
    theirs = {(p["data_seed"], p["seed"]): p for p in select(records, kind="point", **where)}
    pairs = [(p, theirs.get((p["data_seed"], p["seed"]))) for p in found]
    differences = [100 * (p["accuracy"] - q["accuracy"]) for p, q in pairs if q is not None]
    return statistics.mean(differences) if len(differences) == len(pairs) else None


def _judge_average(goal: Goal, records: Records) -> tuple[str, bool | None]:
    """The difference to another method, averaged over budgets and seeds."""
    differences = []
    for budget in goal.over:
        at = replace(goal, budget=budget, against_budget=budget, over=())
        found = select(records, kind="point", method=goal.method, **_where(at))
        differences.append(_difference(at, found, records) if found else None)
    if None in differences:
        return f"{goal.against} not measured at all of them", None
    values = [d for d in differences if d is not None]
    mean = statistics.mean(values)
    return f"{mean:+.2f}, lowest {min(values):+.2f}", round(mean, 2) >= -goal.within


def _judge_training(goal: Goal, found: Records, records: Records) -> tuple[str, bool | None]:
    """Seconds of training as a share of another method's, seed by seed."""
    assert goal.training is not None
    theirs = {
        (r["data_seed"], r["seed"]): r["training"]["seconds"] or 0.1  # rounded to tenths
        for r in select(records, kind="stage", method=goal.against)
    }
    ratios = [
        r["training"]["seconds"] / theirs[r["data_seed"], r["seed"]]
        for r in found
        if (r["data_seed"], r["seed"]) in theirs
    ]
    if len(ratios) < len(found):
        return f"{goal.against} not measured", None
    mean = statistics.mean(ratios)
    return f"mean {mean:.2f}x, longest {max(ratios):.2f}x", round(mean, 2) <= goal.training
