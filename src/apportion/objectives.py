"""What a step of training minimises: one loss for each budget that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion.elastic import Elastic
from apportion.evaluation import logits_of
from apportion.losses import budget_loss, distill_loss
from apportion.recipes import Recipe
from apportion.views import Views


@dataclass(frozen=True)
class Batch:
    """The rows of a step: as they are for the teacher, and as the student sees them."""

    inputs: Mapping[str, Tensor]
    noisy: Mapping[str, Tensor]
    labels: Tensor


def step_losses(
    student: nn.Module,
    teacher: nn.Module | None,
    batch: Batch,
    recipe: Recipe,
    budgets: Sequence[float],
    views: Views | None = None,
) -> Iterator[Tensor]:
    """The task's loss, or the teacher's (Eq. 6), at each budget, one after the other.

    Each can be taken back through the model before the next one is made, so that only one of them
    is in memory. With views, a budget costs its share of a pass.
    """
    says = None
    for budget in budgets:
        if teacher is not None and (says is None or isinstance(teacher, Elastic)):
            with torch.no_grad():
                soft = {"budget": budget} if isinstance(teacher, Elastic) else {}
                says = logits_of(teacher(**batch.inputs, **soft))
        logits = logits_of(_called(student, batch.noisy, recipe, budget, views))
        loss = F.cross_entropy(logits, batch.labels)
        if says is not None:
            loss = distill_loss(loss, logits, says, recipe.alpha, recipe.T)
        yield loss


def _called(
    student: nn.Module,
    inputs: Mapping[str, Tensor],
    recipe: Recipe,
    budget: float,
    views: Views | None,
) -> Any:
    if views is not None:
        return views(views.elastic.allocation(budget, recipe.floor), **inputs)
    if recipe.objective == "dense":
        return student(**inputs)
    return student(**inputs, budget=budget, mode=recipe.objective, floor=recipe.floor)


def paid_loss(model: Elastic, budget: float, recipe: Recipe) -> tuple[Tensor, float]:
    """What Eq. 5 adds for the cost of a budget, and that cost."""
    paid = model.cost(budget)
    return budget_loss(paid, budget, recipe.lam, recipe.beta), float(paid.detach())
