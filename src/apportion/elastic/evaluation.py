"""Evaluating: what a model keeps at a budget, and what the budget costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from apportion.data.task import Split
from apportion.elastic.elastic import Elastic, logits_of
from apportion.method.units import Allocation
from apportion.models.surgery import cut

Form = Literal["soft", "hard", "cut"]
FORMS: tuple[Form, ...] = ("soft", "hard", "cut")

# The paper's sweep: 19 requested budgets.
SWEEP = tuple(round(0.05 * step, 2) for step in range(2, 21))


@dataclass(frozen=True)
class Outcome:
    """How a model did on a split, and the cost that it paid."""

    accuracy: float
    loss: float
    cost: float
    rows: int


@dataclass(frozen=True)
class Point:
    """One budget of a sweep in one form."""

    budget: float
    form: Form
    outcome: Outcome


def evaluate(
    model: nn.Module,
    split: Split,
    *,
    budget: float | None = None,
    form: Form | None = None,
    floor: int | None = None,
    allocation: Allocation | None = None,
    batch_size: int = 32,
) -> Outcome:
    """How a model does on a split.

    An elastic model takes a budget or an allocation, and a form, or has its own: gates as they are
    (soft), their top k (hard), or a smaller model made for it (cut). With neither it runs fully
    open.
    """
    cost = 1.0
    options: dict[str, Any] = {}
    if budget is not None or allocation is not None:
        if not isinstance(model, Elastic):
            raise ValueError("only an elastic model has budgets")
        if form is None:
            form = "soft" if model.form == "soft" else "hard"
        if form not in FORMS:
            raise ValueError(f"a form is one of {', '.join(FORMS)}, not {form!r}")
        if form == "soft" and budget is not None:
            cost = float(model.cost(budget, "soft").detach())
            options = {"budget": budget, "mode": "soft"}
        else:
            if allocation is None:
                assert budget is not None
                allocation = model.allocation(budget, floor)
            cost = allocation.cost
            if form == "cut":
                model = cut(model.plain(), allocation)
            else:
                options = {"allocation": allocation}
    correct, loss = count_correct(model, split, batch_size, **options)
    return Outcome(correct / len(split), loss / len(split), cost, len(split))


def count_correct(
    model: nn.Module, split: Split, batch_size: int = 32, **options: Any
) -> tuple[int, float]:
    """The number of rows that a model gets right, and its summed loss."""
    device = next(model.parameters()).device
    correct, loss = 0, 0.0
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for inputs, labels in split.batches(batch_size):
            inputs = {name: values.to(device) for name, values in inputs.items()}
            labels = labels.to(device)
            logits = logits_of(model(**inputs, **options))
            correct += int((logits.argmax(dim=-1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    model.train(was_training)
    return correct, loss


def sweep(
    model: Elastic,
    split: Split,
    *,
    budgets: Sequence[float] = SWEEP,
    forms: Sequence[Form] | None = None,
    floor: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Point]:
    """How the model does at each budget, in the order given, in each form, or in its own."""
    points: list[Point] = []
    forms = swept_forms(model) if forms is None else forms
    for form, budget in product(forms, budgets):
        points.append(
            Point(budget, form, evaluate(model, split, budget=budget, form=form, floor=floor))
        )
        if progress:
            progress(len(points), len(forms) * len(budgets))
    return points


def swept_forms(model: Elastic) -> tuple[Form, ...]:
    """The forms that tell how a model does: of a nested one, cutting is the quicker hard mask."""
    return ("cut",) if model.form == "nested" else ("soft", "hard")


def rank_agreement(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation of two rankings of the same units: 1 if they are alike.

    Where one of them is all ties there is nothing to compare: NaN.
    """
    from scipy import stats  # slow to import

    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan

    return float(stats.spearmanr(first, second).statistic)


def retention(low: Allocation, high: Allocation) -> float:
    """The share of the units kept at a low budget that a higher one keeps as well."""
    both = sum(a and b for a, b in zip(low.kept, high.kept, strict=True))
    return both / low.count


def is_monotone(points: Sequence[Point]) -> bool:
    """Whether, in each form, more budget never costs less."""
    for form in {point.form for point in points}:
        ordered = sorted((p for p in points if p.form == form), key=lambda p: p.budget)
        costs = [point.outcome.cost for point in ordered]
        if any(later < earlier - 1e-6 for earlier, later in pairwise(costs)):  # float error
            return False
    return True
