"""Gates: how far each unit is open at a budget, and what that costs (Eq. 1 and 3)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion.method.units import Units, check_budget, check_budgets

EPS = 1e-4  # keeps logit(B) finite at B = 1
_SHARPNESS = 2.0  # κ of gates that are set from scores


class Gates(nn.Module):
    """One gate per unit, conditioned on the budget.

    z_u(B) = sigmoid((a_u + softplus(s_u) · logit(clip(B, ε, 1-ε))) / τ)

    softplus makes the sensitivity non-negative, so every gate, and with it the cost,
    can only rise with the budget.
    """

    shares: Tensor
    order: Tensor | None  # positions of the units from first to last bought, once that is fixed

    def __init__(self, units: Units, tau: float = 1.0) -> None:
        super().__init__()
        if tau <= 0:
            raise ValueError(f"tau must be positive, not {tau}")
        self.tau = tau
        self.a = nn.Parameter(torch.zeros(len(units), dtype=torch.float32))
        self.s = nn.Parameter(torch.zeros(len(units), dtype=torch.float32))
        self.register_buffer("shares", units.shares.float(), persistent=False)
        self.register_buffer("order", None)

    def forward(self, budget: Tensor | float) -> Tensor:
        """z(B): [units] for one budget, [batch, units] for one budget per example."""
        if isinstance(budget, Tensor) and budget.dim():
            budget = check_budgets(budget)
        else:
            budget = check_budget(budget)
        budget = torch.as_tensor(budget, dtype=self.a.dtype, device=self.a.device)
        logit = torch.logit(budget.clamp(EPS, 1.0 - EPS))[..., None]
        z = torch.sigmoid((self.a + F.softplus(self.s) * logit) / self.tau)
        return z

    def scores(self, budget: float) -> Tensor:
        """How much each unit is wanted at a budget: z(B) or, once it is fixed, by the order.

        By one order for all budgets, more budget never takes a unit away.
        """
        if self.order is None:
            return self.forward(budget)
        place = self.order.argsort()  # of each unit in the order
        return (len(place) - place) * self.shares  # allocations are by score per cost

    def fix_order(self, order: Tensor) -> None:
        """From now on the units are bought in this order, whatever the budget."""
        if sorted(order.tolist()) != list(range(len(self.a))):
            raise ValueError(f"an order of {len(self.a)} units names each of them once")
        self.order = order.to(self.a.device, torch.int64)

    @torch.no_grad()
    def order_by(self, scores: Tensor) -> None:
        """Sets the gates so that each budget opens the units that score highest.

        a_u = κ·logit(q_u) and softplus(s_u) = κ, with q_u the share of units that score lower:
        z_u(B) > 1/2 exactly where q_u > 1 - B. A larger κ is nearer to 0 and 1, and learns less.
        """
        if scores.shape != self.a.shape or not torch.isfinite(scores).all():
            raise ValueError(
                f"{len(self.a)} gates need as many finite scores, not {tuple(scores.shape)}"
            )
        rank = torch.argsort(torch.argsort(scores.detach().cpu(), descending=True, stable=True))
        q = 1.0 - (rank.to(self.a) + 0.5) / len(rank)
        self.a.copy_(_SHARPNESS * torch.logit(q))
        self.s.fill_(math.log(math.expm1(_SHARPNESS)))

    def cost(self, z: Tensor) -> Tensor:
        """C = Σ_u share_u · z_u: a scalar, or one number per example."""
        return z @ self.shares

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Gates:
        """What `to` and its kind do, but for the precision: in bfloat16 1 - ε is 1."""

        def moved(values: Tensor) -> Tensor:
            changed = fn(values)
            return changed if changed.dtype == values.dtype else values.to(changed.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self
