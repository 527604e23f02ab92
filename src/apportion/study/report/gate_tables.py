"""Records → tables of what the gates learned."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from apportion.elastic.evaluation import rank_agreement, retention
from apportion.method.allocation import allocate
from apportion.method.gates import Gates
from apportion.method.units import Allocation, Units
from apportion.study.experiment import Experiment
from apportion.study.report.query import Records, asked, forms_of, mean_sd, methods_of, select
from apportion.study.report.table import Table

_LOW, _HIGH = 0.25, 0.75  # where the paper compares rankings
_MIDDLE = 0.5


def gate_tables(experiment: Experiment, records: Records) -> list[Table]:
    """What can be said of gates that learned; those of one fixed order say nothing new."""
    gated = [m for m in methods_of(experiment) if "soft" in forms_of(records, m)]
    return [
        ranking_table(gated, records),
        movement_table(gated, records, budgets=(*experiment.budgets, 1.0)),
    ]


def ranking_table(methods: Sequence[str], records: Records) -> Table:
    """Whether the gates rank the units alike at low and high budgets, and as they did at first."""
    rows = []
    for method in methods:
        found = {k: z for k, z in _by_stage(records, method).items() if {_LOW, _HIGH} <= set(z)}
        if not found:
            continue
        alike = list(agreement_by_seed(records, method).values())
        kept = list(retention_by_seed(records, method).values())
        learned = [
            rank_agreement(z[_HIGH]["z"], start)
            for stage, z in found.items()
            if (start := _start(stage, _HIGH, records))
        ]
        new = [
            1.0 - retention(_allocation(z[_MIDDLE]), _first(z[_MIDDLE], start))
            for stage, z in found.items()
            if _MIDDLE in z and (start := _start(stage, _MIDDLE, records))
        ]
        rows.append(
            (
                method,
                str(len(found)),
                mean_sd(alike, 2),
                mean_sd([100 * share for share in kept], 1),
                mean_sd(_numbers(learned), 2),
                mean_sd([100 * share for share in new], 1),
            )
        )
    return Table(
        "ranking",
        "How the gates rank the heads",
        (
            "method",
            "n",
            f"Spearman, {_LOW:.2f} and {_HIGH:.2f}",
            f"kept at {_LOW:.2f} and at {_HIGH:.2f}, %",
            f"Spearman, start and end at {_HIGH:.2f}",
            f"new among those kept at {_MIDDLE:.2f}, %",
        ),
        tuple(rows),
        "Spearman's correlation of the gates' values; gates that start from ties have no first "
        "ranking. New are the heads that the start would not have kept.",
    )


def agreement_by_seed(
    records: Records, method: str, at_start: bool = False
) -> dict[tuple[int, int], float]:
    """Spearman's correlation of a method's gates at a low and a high budget, if not all tied.

    With `at_start` it is that of the gates before any training, where they came from scores.
    """

    def alike(low: Mapping[str, Any], high: Mapping[str, Any]) -> float:
        return rank_agreement(low["z"], high["z"])

    found = _low_and_high(records, method, alike, at_start)
    return {seed: value for seed, value in found.items() if not math.isnan(value)}


def retention_by_seed(
    records: Records, method: str, at_start: bool = False
) -> dict[tuple[int, int], float]:
    """The share of the units kept at a low budget that a high one keeps as well.

    With `at_start` it is that of the gates before any training, where they came from scores.
    """

    def kept(low: Mapping[str, Any], high: Mapping[str, Any]) -> float:
        return retention(_allocation(low), _allocation(high))

    return _low_and_high(records, method, kept, at_start)


def _low_and_high(
    records: Records,
    method: str,
    compare: Callable[[Mapping[str, Any], Mapping[str, Any]], float],
    at_start: bool,
) -> dict[tuple[int, int], float]:
    found = {}
    for stage, z in _by_stage(records, method).items():
        if not {_LOW, _HIGH} <= set(z):
            continue
        low: Mapping[str, Any] | None = z[_LOW]
        high: Mapping[str, Any] | None = z[_HIGH]
        if at_start:
            low, high = (_before(stage, z[budget], records) for budget in (_LOW, _HIGH))
        if low is not None and high is not None:
            found[low["data_seed"], low["seed"]] = compare(low, high)
    return found


def _before(stage: str, record: Mapping[str, Any], records: Records) -> Mapping[str, Any] | None:
    """What the record of some gates would have been before any training, if they had an order."""
    start = _start(stage, record["budget"], records)
    if start is None:
        return None
    return {**record, "z": start, "kept": _first(record, start).to_dict()}


def movement_table(methods: Sequence[str], records: Records, *, budgets: Sequence[float]) -> Table:
    """How far the gates moved from their start: a score, or ties at σ(softplus(0) · logit B)."""
    rows = []
    for method in methods:
        found = _by_stage(records, method)
        cells = []
        for budget in budgets:
            moved = []
            for stage, of_budget in found.items():
                if budget in of_budget:
                    z = of_budget[budget]["z"]
                    start = _start(stage, budget, records) or _tied(budget, len(z))
                    pairs = zip(z, start, strict=True)
                    moved.append(statistics.mean(abs(now - then) for now, then in pairs))
            cells.append(mean_sd(moved, 3))
        if found:
            rows.append((method, *cells))
    return Table(
        "movement",
        "How far the gates moved",
        ("method", *(f"B = {asked(budget)}" for budget in budgets)),
        tuple(rows),
        "Mean distance of a gate z(B) from where it started, over units and seeds.",
    )


def _by_stage(records: Records, method: str) -> dict[str, dict[float, Mapping[str, Any]]]:
    """The gates of a method's models, by stage and budget."""
    found: dict[str, dict[float, Mapping[str, Any]]] = {}
    for record in select(records, kind="gates", method=method):
        found.setdefault(record["stage"], {})[record["budget"]] = record
    return found


def _numbers(values: Sequence[float]) -> list[float]:
    """The values without those of rankings that are all ties."""
    return [value for value in values if not math.isnan(value)]


def _allocation(record: Mapping[str, Any]) -> Allocation:
    """What a record says was kept, over units numbered as its gates are."""
    layers = [len(record["z"]) // len(record["kept"])] * len(record["kept"])
    units = Units.grid(len(layers), layers[0])
    return Allocation.from_dict(units, record["kept"])


def _first(record: Mapping[str, Any], start: Sequence[float]) -> Allocation:
    """What the gates would have kept at their start, of the units that a record speaks of."""
    units = _allocation(record).units
    return allocate(torch.tensor(start), units, budget=record["budget"])


def _start(stage: str, budget: float, records: Records) -> list[float] | None:
    """The gates at the start of a model's training, if they came from scores."""
    of_stage = {r["stage"]: r for r in select(records, kind="stage")}
    parent: str | None = stage
    while parent is not None:
        scored = select(records, kind="scores", stage=parent)
        if scored:
            gates = Gates(Units.grid(1, len(scored[0]["scores"])))
            gates.order_by(torch.tensor(scored[0]["scores"]))
            z: list[float] = gates(budget).tolist()
            return z
        parent = of_stage[parent]["parent"] if parent in of_stage else None
    return None


def _tied(budget: float, count: int) -> list[float]:
    z: list[float] = Gates(Units.grid(1, count))(budget).tolist()
    return z
