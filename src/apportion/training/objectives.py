"""What a step of training minimises: one class per objective of a recipe, one loss per budget."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import convert_outputs_to_fp32
from torch import Tensor, nn

from apportion.data.task import Criterion
from apportion.elastic.elastic import Elastic, Form, logits_of, plain_of
from apportion.elastic.pairing import default_frontier, paired_at
from apportion.method.length import Schedule
from apportion.method.losses import budget_loss, distill_loss, hidden_loss
from apportion.method.units import Allocation, check_budget
from apportion.models.activations import layer_names, remembering
from apportion.training.prefixes import Views
from apportion.training.recipes import Objective, Recipe
from apportion.training.schedule import draw_longer

Call = tuple[nn.Module, dict[str, Any]]  # a model, and what it is called with beside its inputs


def copy_for(model: nn.Module, recipe: Recipe) -> nn.Module:
    """A copy of a model that is asked as the recipe trains it."""
    copied: Any = copy.deepcopy(model)
    if recipe.form is not None:
        copied.made_for(recipe.form, recipe.floor, lowest=recipe.lowest)
    if recipe.axis != "width" and copied.frontier is None:
        budgets = paired_at(recipe.lowest)
        copied.shortened(default_frontier(copied, **recipe.tokens, budgets=budgets))
    return copied  # type: ignore[no-any-return]


class Dense:
    """A plain model: it has no budgets, and nothing to pay."""

    def __init__(self, student: nn.Module, recipe: Recipe, accelerator: Accelerator) -> None:
        self.student, self.recipe = student, recipe
        self.model: Any = accelerator.unwrap_model(student)

    def draw(self, seed: int, step: int) -> None:
        """Draws what a step has beside its budgets: nothing."""

    def answer(self, budget: float, inputs: Mapping[str, Tensor]) -> Any:
        """What the student returns at a budget."""
        return self.student(**inputs)

    def inside(self, budget: float) -> nn.Module:
        """The plain model that answers, whose layers can be watched."""
        return plain_of(self.model)

    def payment(self, budget: float) -> tuple[Tensor | float, float]:
        """What Eq. 5 adds for the cost of a budget, and that cost."""
        return 0.0, 1.0

    def validation(self) -> tuple[list[Call], float]:
        """The calls that choose the best epoch, and what Eq. 5 adds to their loss."""
        return [(self.model, {})], 0.0


class StraightThrough(Dense):
    """An elastic model under hard masks, whose gates learn as if they were soft.

    It was made for the recipe, so its own floor is the recipe's.
    """

    form: Form = "straight-through"
    model: Elastic

    def answer(self, budget: float, inputs: Mapping[str, Tensor]) -> Any:
        """What the student returns with its units gated."""
        return self.student(**inputs, **{"budget": budget, "form": self.form})

    def payment(self, budget: float) -> tuple[Tensor | float, float]:
        """Nothing: a hard mask costs what the budget buys."""
        return 0.0, self.model.allocation(budget).cost

    def validation(self) -> tuple[list[Call], float]:
        """One call per budget, in the form that the model was made for."""
        return [(self.model, {"budget": budget}) for budget in self.recipe.select_at], 0.0


class Soft(StraightThrough):
    """An elastic model with gates as they are, which pays for what is open (Eq. 5)."""

    form = "soft"

    def payment(self, budget: float | Tensor) -> tuple[Tensor | float, float]:
        """λ·C(B) + β·max(0, C(B) − B)², and C(B), averaged over several budgets."""
        cost = self.model.cost(budget)
        paid = budget_loss(cost, budget, self.recipe.lam, self.recipe.beta)
        return paid, float(cost.detach().mean())

    @torch.no_grad()
    def validation(self) -> tuple[list[Call], float]:
        """One call per budget, and what they pay on average."""
        budgets = torch.tensor(self.recipe.select_at, device=self.model.gates.a.device)
        return super().validation()[0], float(self.payment(budgets)[0])


class Nested(StraightThrough):
    """An elastic model with one order for all budgets, called through views of its weights."""

    def __init__(self, student: nn.Module, recipe: Recipe, accelerator: Accelerator) -> None:
        super().__init__(student, recipe, accelerator)

        def in_mixed_precision(call: Callable[..., Any]) -> Callable[..., Any]:
            """The call under autocast: Accelerate wraps models that it prepared, and no views."""
            if not accelerator.native_amp:
                return call
            wrapped: Callable[..., Any] = convert_outputs_to_fp32(accelerator.autocast()(call))
            return wrapped

        self.views = Views(self.model, in_mixed_precision)
        self.longer = 0.0

    def draw(self, seed: int, step: int) -> None:
        """How far the step reads on towards the whole text, where budgets drop tokens."""
        if self.recipe.axis != "width":
            self.longer = draw_longer(seed, step)

    def answer(self, budget: float, inputs: Mapping[str, Tensor]) -> Any:
        """What the budget's units compute, in its share of the time."""
        return self.views(self._drawn(budget), **inputs)

    def inside(self, budget: float) -> nn.Module:
        """The modules that compute the budget's units."""
        return self.views.shape(self._drawn(budget))

    def _drawn(self, budget: float) -> Allocation:
        """What the budget buys, on as many tokens as were drawn."""
        kept = self.model.allocation(budget)
        if kept.schedule is None or not self.longer:
            return kept
        whole = Schedule.everything(len(kept.schedule.shares))
        return self.model.on_fewer(kept, kept.schedule.towards(whole, self.longer))

    def validation(self) -> tuple[list[Call], float]:
        """Cut models: the hard mask's numbers, in a budget's share of the time."""
        return [(self.model.cut(budget), {}) for budget in self.recipe.select_at], 0.0


OBJECTIVES: dict[Objective, type[Dense]] = {
    "dense": Dense,
    "soft": Soft,
    "straight-through": StraightThrough,
    "nested": Nested,
}


class Teacher:
    """The model that a student learns from; one with budgets is asked at the student's."""

    def __init__(self, model: nn.Module, lowest: float) -> None:
        self.model = model.eval()
        self.has_budgets = False
        if isinstance(model, Elastic):
            check_budget(lowest, model.lowest)  # now, and not at some step
            self.has_budgets = True

    def answer(self, budget: float, inputs: Mapping[str, Tensor]) -> Any:
        """What the teacher returns."""
        asked = {"budget": budget} if self.has_budgets else {}
        return self.model(**inputs, **asked)


_ROOTED = 1e-4  # nats: nearer than that, the slope of the root grows no more


@dataclass(frozen=True)
class Batch:
    """The rows of a step: as the teacher reads them, and as the student does.

    Or as both read them, with what the teacher answered.
    """

    inputs: Mapping[str, Tensor]
    noisy: Mapping[str, Tensor]
    labels: Tensor
    answers: Tensor | None = None  # [rows, outputs]


def step_losses(
    student: Dense,
    teacher: Teacher | None,
    batch: Batch,
    budgets: Sequence[float],
    criterion: Criterion,
) -> Iterator[Tensor]:
    """The task's loss, or with a teacher Eq. 6, at each budget, one after the other.

    Each can be taken back through the model before the next one is made, so that only one of them
    is in memory. Where the recipe has `hidden`, the layers learn the teacher's hidden states too.
    """
    recipe = student.recipe
    taught: Tensor | None = None
    taught_states: dict[str, Any] = {}
    for budget in budgets:
        if (
            batch.answers is None
            and teacher is not None
            and (taught is None or teacher.has_budgets)
        ):
            watched = plain_of(teacher.model) if recipe.hidden else None
            with torch.no_grad(), _watching(watched) as taught_states:
                taught = logits_of(teacher.answer(budget, batch.inputs))
        with _watching(student.inside(budget) if recipe.hidden else None) as states:
            logits = logits_of(student.answer(budget, batch.noisy))
        if batch.answers is not None:  # of rows that may have no labels
            divergence = criterion.divergence(logits, batch.answers, T=recipe.T)
            # The root's slope grows where answers are near, so that small budgets, which are far
            # from the teacher, do not pull large ones away from it.
            yield (divergence + _ROOTED).sqrt() if recipe.rooted else recipe.T**2 * divergence
            continue
        loss = criterion.loss(logits, batch.labels)
        if taught is not None:
            divergence = criterion.divergence(logits, taught, T=recipe.T)
            loss = distill_loss(loss, divergence, recipe.alpha, recipe.T)
        if taught_states:
            mask = batch.inputs.get("attention_mask")
            hidden = hidden_loss(_hidden(states), _hidden(taught_states), mask)
            loss = loss + recipe.hidden * hidden
        yield loss


def _watching(model: nn.Module | None) -> AbstractContextManager[dict[str, Any]]:
    """What each layer of a model returns in a call; of no model, nothing."""
    return nullcontext({}) if model is None else remembering(model, layer_names(model))


def _hidden(of_layers: Mapping[str, Any]) -> list[Tensor]:
    """The hidden states that layers return; some return more beside them."""
    return [found[0] if isinstance(found, tuple) else found for found in of_layers.values()]
