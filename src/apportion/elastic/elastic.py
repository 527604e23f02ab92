"""Elastic: a model with its gates, answering each call at the budget that is asked for (Eq. 2)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor, nn

from apportion.method.allocation import allocate, buying_order, pays_floor, straight_through
from apportion.method.frontier import Frontier
from apportion.method.gates import Gates
from apportion.method.length import Schedule
from apportion.method.units import Allocation, check_budget, check_budgets
from apportion.models.readout import check_first_token, read_first_token
from apportion.models.sites import BLOCK, find_sites, on_fewer_tokens, on_first_token, units_of
from apportion.models.surgery import arrange, cut, view

# How a budget is applied: gates as they are; their top k; those with the gates' gradient; a smaller
# model; by one order for all budgets.
Form = Literal["soft", "hard", "straight-through", "cut", "nested"]
CALLED: tuple[Form, ...] = ("soft", "hard", "straight-through")  # what a call may ask for
MADE_FOR: tuple[Form, ...] = ("soft", "hard", "nested")  # what a model is made for
# What the objective of a recipe makes a model for. Gates set from scores are hard, too.
TRAINED_FORMS: dict[str, Form | None] = {
    "dense": None,
    "soft": "soft",
    "straight-through": "hard",
    "nested": "nested",
}

# The gates of the call that is running. A context variable, so that threads that ask one model
# for different budgets each see their own.
_gates_of_this_call: ContextVar[Tensor | None] = ContextVar("gates_of_this_call", default=None)


class Elastic(nn.Module):
    """A copy of a model whose units open and close with the budget.

    õ_u = z_u(B) · o_u, at the input of each output projection, where the outputs of the units
    still stand side by side: no forward code is copied, and any attention kernel will do.

    It knows how it is to be asked: a call that does not say more gets its form and its floor, and
    a budget below its lowest is refused.
    """

    floor: int  # units of each layer and kind that stay whatever the budget
    lowest: float | None  # the smallest budget that it was made for, if that is known
    frontier: Frontier | None  # the pair of width and length that a budget buys, if not all tokens

    def __init__(
        self,
        model: nn.Module,
        kinds: Sequence[str] = ("heads",),
        *,
        length: int = 128,
        tau: float = 1.0,
        block: int = BLOCK,
        first_token: bool = False,
    ) -> None:
        super().__init__()
        if any(isinstance(module, Elastic) for module in model.modules()):
            raise ValueError("the model is elastic already")
        check_computed_once(model)
        self.model = plain_copy(model)
        self.kinds = tuple(kinds)
        self.length = length  # where the units' costs are taken
        self.block = block
        # Whether views compute the last layer for token 0 alone, and units there cost less.
        self.first_token = first_token
        sites = find_sites(self.model, kinds, block)
        self.units = units_of(on_first_token(sites) if first_token else sites, length)
        self.gates = Gates(self.units, tau)
        self._form: Form = "soft"
        self.floor, self.lowest, self.frontier = 0, None, None
        for site in sites:
            if site.count:
                span = self.units.spans[site.layer, site.kind]
                module = self.model.get_submodule(site.output)
                module.register_forward_pre_hook(_Gating(span, site.width))

    @property
    def form(self) -> Form:
        """What it was made for: soft gates, hard masks, or one nested order of its units."""
        return self._form if self.gates.order is None else "nested"

    @property
    def answers(self) -> Form:
        """The form of a call that does not say more: soft or hard."""
        return "soft" if self.form == "soft" else "hard"

    @property
    def made_as(self) -> dict[str, Any]:
        """What `made_for` was given: how it is to be asked."""
        return {"form": self.form, "floor": self.floor, "lowest": self.lowest}

    def made_for(self, form: Form, floor: int = 0, *, lowest: float | None = None) -> Elastic:
        """This model, which is asked in this form, with this floor and from this budget on."""
        if form not in MADE_FOR:
            raise ValueError(f"a model's form is one of {', '.join(MADE_FOR)}, not {form!r}")
        if (form == "nested") != (self.form == "nested"):
            raise ValueError(
                "a nested model needs one order for all budgets; `nested()` returns one that has it"
                if form == "nested"
                else f"a nested model has one order for all budgets, and can't be made {form}"
            )
        if not isinstance(floor, int) or isinstance(floor, bool):
            raise ValueError(f"a floor is a whole number of units, not {floor!r}")
        smallest = check_budget(1.0 if lowest is None else lowest)
        # Complains of a floor that a layer does not have, or that the smallest budget can't pay.
        self.bought(smallest, floor)
        self._form, self.floor = form, floor
        self.lowest = None if lowest is None else smallest
        return self

    def shortened(self, frontier: Frontier | None) -> Elastic:
        """This model, whose budgets buy pairs of width and length; None: all tokens, as before."""
        if frontier is not None:
            if self.form != "nested":
                raise ValueError("only a nested model can drop tokens by its budget; `nested()`")
            frontier.check(self.units.layers, self.length)
            check_first_token(self.model)
        self.frontier = frontier
        return self

    def forward(
        self,
        *args: Any,
        budget: float | Tensor | None = None,
        form: Form | None = None,
        floor: int | None = None,
        allocation: Allocation | None = None,
        z: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """What the model returns with its units gated.

        By the budget, in its own form or in one that is asked for (soft takes one budget per
        example, too); or by an allocation; or by given gates z, one number per unit. With none of
        them nothing is gated: then this is the original model.
        """
        if self.frontier is not None and budget is not None and allocation is None:
            self._asked(form)
            allocation = self.allocation(check_budget(budget), floor)
        if allocation is not None:
            if allocation.units.members != self.units.members:
                raise ValueError("the allocation is of units of another model")
            if allocation.schedule is not None:
                if self.training and torch.is_grad_enabled():
                    raise ValueError("a model that drops tokens is trained by `fit`, not by calls")
                return view(self.model, allocation)(*args, **kwargs)
            z = allocation.mask().to(self.gates.a.device)
        elif budget is not None:
            z = self.opening(budget, form, floor=floor)
        elif z is not None:
            self._check_gates(z)
        if z is not None and self.training and torch.is_grad_enabled():
            check_computed_once(self.model)
        token = _gates_of_this_call.set(z)
        try:
            return self.model(*args, **kwargs)
        finally:
            _gates_of_this_call.reset(token)

    def opening(
        self, budget: float | Tensor, form: Form | None = None, *, floor: int | None = None
    ) -> Tensor:
        """How far each unit is open: z(B), its top k as 0 and 1, or those with z's gradient."""
        form = self._asked(form)
        if form == "soft" and isinstance(budget, Tensor) and budget.dim():
            several: Tensor = self.gates(check_budgets(budget, self.lowest))
            return several
        budget = check_budget(budget, self.lowest)
        if form == "hard":
            return self.allocation(budget, floor).mask().to(self.gates.a)
        z: Tensor = self.gates(budget)
        if form == "soft":
            return z
        return straight_through(z, self.allocation(budget, floor).mask().to(z))

    def cost(
        self, budget: float | Tensor, form: Form | None = None, *, floor: int | None = None
    ) -> Tensor:
        """C(B), differentiable where its gates are."""
        if self.frontier is not None:
            self._asked(form)
            return torch.tensor(self.allocation(check_budget(budget), floor).cost)
        return self.gates.cost(self.opening(budget, form, floor=floor))

    @torch.no_grad()
    def allocation(self, budget: float, floor: int | None = None) -> Allocation:
        """The units that a budget buys by the gates' own scores, and on how many tokens."""
        budget = check_budget(budget, self.lowest)
        floor = self.floor if floor is None else floor
        if self.gates.a.is_meta:
            raise ValueError("a model on the meta device has no weights to choose its units by")
        kept = self.bought(budget, floor)
        return self.on_fewer(kept, self.frontier.schedule(budget)) if self.frontier else kept

    def on_fewer(self, kept: Allocation, schedule: Schedule) -> Allocation:
        """An allocation of its units on the tokens that a schedule leaves, at their cost there."""
        sites = find_sites(self.model, self.kinds, self.block)
        sites = on_fewer_tokens(on_first_token(sites) if self.first_token else sites, schedule)
        return kept.shortened(schedule, units_of(sites, self.length).costs)

    def bought(self, budget: float, floor: int) -> Allocation:
        """The units of a budget or of the width that it buys; it may be below the smallest one."""
        width = self.frontier.width(budget) if self.frontier else budget
        return allocate(self.gates.scores(width), self.units, budget=width, floor=floor)

    @torch.no_grad()
    def within(self, budgets: Sequence[float]) -> tuple[float, ...]:
        """Those of some budgets that it was made for, from its smallest one up."""
        if self.lowest is not None and self.lowest > min(budgets):
            budgets = (self.lowest, *(budget for budget in budgets if budget > self.lowest))
        return tuple(
            budget
            for budget in budgets
            for width in [self.frontier.width(budget) if self.frontier else budget]
            if pays_floor(self.gates.scores(width), self.units, width, self.floor)
        )

    def _asked(self, form: Form | None) -> Form:
        """The form that a call asks for, or the model's own."""
        if form is None:
            return self.answers
        if form not in CALLED:
            raise ValueError(f"a call's form is one of {', '.join(CALLED)}, not {form!r}")
        if self.form == "nested" and form != "hard":
            raise ValueError(f"a nested model was never made to be {form}; it answers hard")
        return form

    def _check_gates(self, z: Tensor) -> None:
        """Refuses gates that are given and are not a number for each unit."""
        if not isinstance(z, Tensor) or z.dim() not in (1, 2) or z.shape[-1] != len(self.units):
            given = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(
                f"z is a tensor with a number for each of the {len(self.units)} units, not {given}"
            )

    @torch.no_grad()
    def nested(self, scores: Tensor | None = None) -> Elastic:
        """A new elastic model that buys its units in one order, whatever the budget.

        By these scores, or by its gates at a budget of 1/2. The units of each layer are put in that
        order, so that every budget keeps the first of them: the first rows and columns of each
        matrix. What it computes with all units open does not change.
        """
        scores = self.gates(0.5) if scores is None else scores
        order, _ = buying_order(scores, self.units)
        place = order.argsort()  # of each unit in the order
        spans = self.units.spans.values()
        before = torch.cat([s.start + place[s].argsort() for s in spans])
        made = self.around(arrange(self.plain(), self.units, before))
        made.gates.a.copy_(self.gates.a[before])
        made.gates.s.copy_(self.gates.s[before])
        made.gates.fix_order(before.argsort()[order])  # where each unit stands now
        made.floor = self.floor  # the budgets that it was made for are another model's
        made.frontier = self.frontier
        return made.to(self.gates.a.device).train(self.training)

    def around(self, model: nn.Module, block: int | None = None) -> Elastic:
        """A new elastic model of the same numbers around another plain one."""
        return Elastic(
            model,
            self.kinds,
            length=self.length,
            tau=self.gates.tau,
            block=self.block if block is None else block,
            first_token=self.first_token,
        )

    def cut(self, budget: float, floor: int | None = None) -> nn.Module:
        """A smaller plain model for one budget."""
        return cut(self.plain(), self.allocation(budget, floor))

    def plain(self) -> nn.Module:
        """A copy of the model inside, without gates."""
        return plain_copy(self.model)

    def served(self) -> nn.Module:
        """A plain copy for calls and views: where only token 0 is read, the last layer is short."""
        return read_first_token(self.plain()) if self.first_token else self.plain()


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy of a model without any gating hooks."""
    plain = copy.deepcopy(model)
    for module in plain.modules():
        hooks = module._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, _Gating)]:
            del hooks[key]
    return plain


def check_computed_once(model: nn.Module) -> None:
    """Refuses layers that backward computes again: their call, and its gates, would be gone."""
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            "the model has gradient checkpointing, which computes layers again without their "
            "gates; switch it off: `model.gradient_checkpointing_disable()`"
        )


def plain_of(model: nn.Module) -> nn.Module:
    """The model inside an elastic one, to be looked at and not changed; a plain one itself."""
    return model.model if isinstance(model, Elastic) else model


def check_elastic(model: nn.Module) -> Elastic:
    """The model, if it is elastic; a plain one has no budgets and is refused."""
    if not isinstance(model, Elastic):
        raise ValueError(
            f"only an elastic model has budgets, and {type(model).__name__} is none; wrap it: "
            "`Elastic(model)`"
        )
    return model


class _Gating:
    """Scales each unit's columns of a module's input by the gates of the call."""

    def __init__(self, span: slice, width: int) -> None:
        self.span = span
        self.width = width

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        gates = _gates_of_this_call.get()
        if gates is None:
            return None
        z = gates[..., self.span].to(args[0].dtype)
        z = z.repeat_interleave(self.width, dim=-1)  # [(batch,) columns]
        if z.dim() == 2:
            rows = args[0].shape[0]
            if len(z) not in (1, rows):
                raise ValueError(f"{rows} rows need one budget, or {rows} of them, not {len(z)}")
            z = z[:, None, :]
        return (args[0] * z, *args[1:])


def logits_of(output: Any) -> Tensor:
    """The logits of a model's output, which may be the tensor itself."""
    logits: Tensor = getattr(output, "logits", output)
    return logits
