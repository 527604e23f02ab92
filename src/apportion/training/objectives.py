"""What a step of training minimises: one loss for each budget that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion.elastic.elastic import Elastic, logits_of, plain_of
from apportion.method.losses import budget_loss, distill_loss, hidden_loss
from apportion.models.activations import layer_names, remembering
from apportion.training.prefixes import Views
from apportion.training.recipes import Recipe


@dataclass(frozen=True)
class Batch:
    """The rows of a step: as the teacher reads them, and as the student does."""

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
    is in memory. With views, a budget costs its share of a pass. Where the recipe asks for it, the
    layers too learn to return what the teacher's do.
    """
    says, does = None, None
    for budget in budgets:
        if teacher is not None and (says is None or isinstance(teacher, Elastic)):
            asked = {"budget": budget} if isinstance(teacher, Elastic) else {}
            with torch.no_grad(), _watching(plain_of(teacher), recipe) as does:
                says = logits_of(teacher(**batch.inputs, **asked))
        kept = views.elastic.allocation(budget, recipe.floor) if views else None
        inside = views.shape(kept) if views and kept else plain_of(_unwrapped(student))
        with _watching(inside, recipe) as done:
            if views and kept:
                output = views(kept, **batch.noisy)
            elif recipe.objective == "dense":
                output = student(**batch.noisy)
            else:
                given = {"budget": budget, "mode": recipe.objective, "floor": recipe.floor}
                output = student(**batch.noisy, **given)
        logits = logits_of(output)
        loss = F.cross_entropy(logits, batch.labels)
        if says is not None:
            loss = distill_loss(loss, logits, says, recipe.alpha, recipe.T)
        if does:
            mask = batch.inputs.get("attention_mask")
            loss = loss + recipe.hidden * hidden_loss(_states(done), _states(does), mask)
        yield loss


def _watching(model: nn.Module, recipe: Recipe) -> AbstractContextManager[dict[str, Any]]:
    """What the layers of a model return in a call, if the recipe asks for it."""
    return remembering(model, layer_names(model)) if recipe.hidden else nullcontext({})


def _states(of_layers: Mapping[str, Any]) -> list[Tensor]:
    """The hidden states that layers return; some return more beside them."""
    return [found[0] if isinstance(found, tuple) else found for found in of_layers.values()]


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what shares it between processes."""
    inside: nn.Module = getattr(model, "module", model)
    return inside


def paid_loss(model: Elastic, budget: float, recipe: Recipe) -> tuple[Tensor | float, float]:
    """What Eq. 5 adds for the cost of a budget, nothing under hard masks, and that cost."""
    if recipe.objective != "soft":
        return 0.0, model.allocation(budget, recipe.floor).cost
    paid = model.cost(budget)
    return budget_loss(paid, budget, recipe.lam, recipe.beta), float(paid.detach())
