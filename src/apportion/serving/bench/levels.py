"""Levels: how a runtime does at each of them on labelled rows, and how long a call takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from apportion.data.task import Split
from apportion.elastic.evaluation import Outcome, Point
from apportion.serving.bench.timing import Arm, measure
from apportion.serving.runtime.session import Runtime

Progress = Callable[[int, int], None]
FORM = "one file"  # what records call the arms of a runtime


def sweep_levels(
    runtime: Runtime,
    split: Split,
    *,
    budgets: Sequence[float] | None = None,
    batch: int = 32,
    progress: Progress | None = None,
) -> list[Point]:
    """How a runtime does on a split at some budgets, or at each of its levels."""
    budgets = runtime.levels if budgets is None else budgets
    levels = [runtime.level_of(budget) for budget in budgets]
    criterion, points = split.criterion, []
    for budget, level in zip(budgets, levels, strict=True):
        score = loss = 0.0
        for inputs, labels in split.batches(batch):
            logits = torch.from_numpy(runtime(**_arrays(inputs), budget=level))
            score += float(criterion.score(logits, labels).sum())
            loss += float(criterion.loss(logits, labels, reduction="sum"))
        cost = runtime.costs[runtime.levels.index(level)]
        outcome = Outcome(score / len(split), loss / len(split), cost, len(split))
        points.append(Point(budget, "nested", outcome))
        if progress:
            progress(len(points), len(levels))
    return points


def time_levels(
    runtime: Runtime,
    batches: Sequence[Mapping[str, Tensor]],
    *,
    budgets: Sequence[float] | None = None,
    repeats: int = 41,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Latency records of a runtime's levels over some batches, beside its highest level.

    `bound` is what the costs of the levels let expect.
    """
    asked = runtime.levels if budgets is None else budgets
    highest = runtime.levels[-1]
    levels = sorted({highest, *(runtime.level_of(budget) for budget in asked)}, reverse=True)
    given = [_arrays(inputs) for inputs in batches]
    arms: dict[str, Sequence[Arm]] = {
        f"{FORM} {level:g}": [partial(runtime, **arrays, budget=level) for arrays in given]
        for level in levels
    }
    measured = measure(arms, repeats, threads=runtime.threads, progress=progress)
    cost_of = dict(zip(runtime.levels, runtime.costs, strict=True))
    shapes = [arrays["input_ids"].shape for arrays in given]
    rows = sum(count for count, _ in shapes)
    return [
        {
            "kind": "latency",
            "form": FORM,
            "budget": level,
            "rows": rows,
            "batch": max(count for count, _ in shapes),
            "length": max(width for _, width in shapes),
            "tokens": round(sum(count * width for count, width in shapes) / rows, 1),
            "runtime": f"{runtime.identity['runtime']} {runtime.identity['precision']}",
            "bound": round(cost_of[highest] / cost_of[level], 4),
            **{k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(latency).items()},
        }
        for level, latency in zip(levels, measured, strict=True)
    ]


def _arrays(inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: values.numpy() for name, values in inputs.items()}
