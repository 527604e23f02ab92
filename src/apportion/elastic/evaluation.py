"""Evaluating: what a model keeps at a budget, and what the budget costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

from apportion.data.task import Split
from apportion.elastic.elastic import Elastic, Form, check_elastic, logits_of, plain_of
from apportion.method.units import Allocation
from apportion.models.surgery import cut

FORMS: tuple[Form, ...] = ("soft", "hard", "cut")  # in which a model is evaluated

# The paper's sweep: 19 requested budgets.
SWEEP = tuple(round(0.05 * step, 2) for step in range(2, 21))


@dataclass(frozen=True)
class Outcome:
    """How a model did on a split, and the cost that it paid."""

    accuracy: float  # the mean score
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

    An elastic model takes a budget or an allocation, and a form: gates as they are (soft), their
    top k (hard), or a smaller model (cut). Without a form it answers in its own; with neither
    budget nor allocation it runs fully open.
    """
    cost = 1.0
    options: dict[str, Any] = {}
    if budget is not None or allocation is not None:
        elastic = check_elastic(model)
        form = elastic.answers if form is None else form
        if form not in FORMS:
            raise ValueError(f"a form is one of {', '.join(FORMS)}, not {form!r}")
        if form == "soft" and budget is not None:
            cost = float(elastic.cost(budget, "soft").detach())
            options = {"budget": budget, "form": "soft"}
        else:
            if allocation is None:
                assert budget is not None
                allocation = elastic.allocation(budget, floor)
            cost = allocation.cost
            if form == "cut":
                model = cut(elastic.plain(), allocation)
            else:
                options = {"allocation": allocation}
    score, loss = sum_scores(model, split, batch_size, **options)
    return Outcome(score / len(split), loss / len(split), cost, len(split))


def sum_scores(
    model: nn.Module, split: Split, batch_size: int = 32, **options: Any
) -> tuple[float, float]:
    """The summed score of a model's answers (of classes: how many are right), and its summed loss.

    Both are those of the split's criterion.
    """
    criterion = split.criterion
    criterion.check(plain_of(model))
    score, loss = 0.0, 0.0
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for logits, labels in answers_by_batch(model, split, batch_size, **options):
            score += float(criterion.score(logits, labels).sum())
            loss += float(criterion.loss(logits, labels, reduction="sum"))
    model.train(was_training)
    return score, loss


def answers_by_batch(
    model: nn.Module, split: Split, batch_size: int = 32, **options: Any
) -> Iterator[tuple[Tensor, Tensor]]:
    """The logits [rows, outputs] and labels of each batch of a split, on the model's device."""
    device = next(model.parameters()).device
    for inputs, labels in split.batches(batch_size):
        moved = {name: values.to(device) for name, values in inputs.items()}
        yield logits_of(model(**moved, **options)), labels.to(device)


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
