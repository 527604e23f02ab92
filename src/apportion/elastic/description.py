"""What a checkpoint holds, in plain values, and which units it keeps at each budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apportion.elastic.card import BUDGETS
from apportion.elastic.checkpoint import Checkpoint
from apportion.elastic.elastic import Elastic
from apportion.models.compute import count_macs, count_parameters
from apportion.models.configs import config_of


def describe(
    checkpoint: Checkpoint, budgets: Sequence[float] | None = None, *, floor: int | None = None
) -> dict[str, Any]:
    """What a checkpoint holds and, if it has gates, what these budgets keep of its units."""
    plain = checkpoint.plain
    elastic = checkpoint.require_elastic() if budgets else checkpoint.elastic
    return {
        "kind": checkpoint.kind,
        "model": config_of(plain),
        "parameters": count_parameters(plain),
        "length": checkpoint.length,
        "macs": count_macs(plain, checkpoint.length),
        "recipes": [recipe["name"] for recipe in checkpoint.notes.get("recipes", [])],
        "task": checkpoint.notes.get("task"),
        "kept": checkpoint.kept and checkpoint.kept.to_dict(),
        **(elastic.made_as if elastic else {}),
        "budgets": [_at(elastic, budget, floor) for budget in budgets or elastic.within(BUDGETS)]
        if elastic
        else [],
    }


def _at(model: Elastic, budget: float, floor: int | None) -> dict[str, Any]:
    allocation = model.allocation(budget, floor)
    soft = None if model.form == "nested" else float(model.cost(budget, "soft").detach())
    return {
        "budget": budget,
        "cost_soft": soft and round(soft, 4),
        "cost_hard": round(allocation.cost, 4),
        "kept": allocation.to_dict(),
        **({"shares": list(allocation.schedule.shares)} if allocation.schedule else {}),
    }
