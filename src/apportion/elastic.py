"""Elastic: a model with its gates, answering each call at the budget that is asked for (Eq. 2)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor, nn

from apportion.allocation import allocate, buying_order, straight_through
from apportion.gates import Gates
from apportion.sites import BLOCK, find_sites, units_of
from apportion.surgery import arrange, cut
from apportion.units import Allocation

Mode = Literal["soft", "hard", "straight-through"]
MODES: tuple[Mode, ...] = ("soft", "hard", "straight-through")

# The gates of the call that is running. A context variable, so that threads that ask one model
# for different budgets each see their own.
_gates_of_this_call: ContextVar[Tensor | None] = ContextVar("gates_of_this_call", default=None)


class Elastic(nn.Module):
    """A copy of a model whose units open and close with the budget.

    õ_u = z_u(B) · o_u, at the input of each output projection, where the outputs of the units
    still stand side by side: no forward code is copied, and any attention kernel will do.
    """

    def __init__(
        self,
        model: nn.Module,
        kinds: Sequence[str] = ("heads",),
        length: int = 128,
        tau: float = 1.0,
        block: int = BLOCK,
    ) -> None:
        super().__init__()
        if any(isinstance(module, Elastic) for module in model.modules()):
            raise ValueError("the model is elastic already")
        self.model = plain_copy(model)
        self.kinds = tuple(kinds)
        self.length = length  # where the units' costs are taken
        self.block = block
        sites = find_sites(self.model, kinds, block)
        self.units = units_of(sites, length)
        self.gates = Gates(self.units, tau)
        for site in sites:
            if site.count:
                span = self.units.spans[site.layer, site.kind]
                module = self.model.get_submodule(site.output)
                module.register_forward_pre_hook(_Gating(span, site.width))

    def forward(
        self,
        *args: Any,
        budget: float | Tensor | None = None,
        mode: Mode = "soft",
        floor: int = 0,
        allocation: Allocation | None = None,
        z: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """What the model returns with its units gated.

        By the budget, in one of the modes (soft takes a budget an example too); or by an
        allocation; or by gates z that are given, a number a unit; or, with none of them, not at
        all: then this is the original model.
        """
        if allocation is not None:
            z = allocation.mask().to(self.gates.a.device)
        elif budget is not None:
            z = self.opening(budget, mode, floor)
        token = _gates_of_this_call.set(z)
        try:
            return self.model(*args, **kwargs)
        finally:
            _gates_of_this_call.reset(token)

    def opening(self, budget: float | Tensor, mode: Mode = "soft", floor: int = 0) -> Tensor:
        """How far each unit is open: z(B), its top k as 0 and 1, or those with z's gradient."""
        z: Tensor = self.gates(budget)
        if mode == "soft":
            return z
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        mask = self.allocation(float(budget), floor).mask().to(z)
        return mask if mode == "hard" else straight_through(z, mask)

    def cost(self, budget: float | Tensor) -> Tensor:
        """C(B), differentiable."""
        return self.gates.cost(self.gates(budget))

    @torch.no_grad()
    def allocation(self, budget: float, floor: int = 0) -> Allocation:
        """The units that a budget buys by the gates' own scores."""
        return allocate(self.gates.scores(budget), self.units, budget, floor)

    @torch.no_grad()
    def nested(self, scores: Tensor | None = None) -> Elastic:
        """A new elastic model that buys its units in one order, whatever the budget.

        By these scores, or by its gates at a budget of 1/2. The units of each layer are put in that
        order, so that every budget keeps the first of them: the first rows and columns of each
        matrix. What it computes with all units open does not change.
        """
        scores = self.gates(0.5) if scores is None else scores
        order, _ = buying_order(scores, self.units)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        spans = self.units.spans.values()
        before = torch.cat([torch.arange(s.start, s.stop)[place[s].argsort()] for s in spans])
        after = torch.empty_like(before)  # where a unit stands now
        after[before] = torch.arange(len(before))
        model = arrange(self.plain(), self.units, before)
        made = Elastic(model, self.kinds, self.length, self.gates.tau, self.block)
        made.gates.a.copy_(self.gates.a[before])
        made.gates.s.copy_(self.gates.s[before])
        made.gates.fix_order(after[order])
        return made.to(self.gates.a.device).train(self.training)

    def cut(self, budget: float, floor: int = 0) -> nn.Module:
        """A smaller plain model for one budget."""
        return cut(self.plain(), self.allocation(budget, floor))

    def plain(self) -> nn.Module:
        """A copy of the model inside, without gates."""
        return plain_copy(self.model)


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy of a model without any gating hooks."""
    plain = copy.deepcopy(model)
    for module in plain.modules():
        hooks = module._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, _Gating)]:
            del hooks[key]
    return plain


def plain_of(model: nn.Module) -> nn.Module:
    """What is inside an elastic model, to be looked at and not changed; any other as it is."""
    return model.model if isinstance(model, Elastic) else model


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
            z = z[:, None, :]
        return (args[0] * z, *args[1:])
