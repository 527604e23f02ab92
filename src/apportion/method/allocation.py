"""From scores to an allocation that a budget pays for (Eq. 4), and its straight-through form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from apportion.method.units import Allocation, Units, check_budget

# Half of a unit counts as paid in spite of float error: 0.145 · 100 is 14.499999999999998.
_SLACK = 1e-9


def allocate(scores: Tensor, units: Units, *, budget: float, floor: int = 0) -> Allocation:
    """The allocation that keeps the units most wanted per cost until the budget is spent.

    k(B) = max(1, round(B·L·H)) where all units cost the same. In general a unit is bought when
    the budget pays at least half of it, which rounds halves up. The first `floor` units of each
    layer and kind are bought before any other. Ties go to the earlier unit.
    """
    check_budget(budget)
    order, required = buying_order(scores, units, floor)
    shares = units.shares[order]
    paid = shares.cumsum(0) - shares / 2  # what must be in the purse to buy the i-th unit
    bought = max(1, int((paid <= budget + _SLACK).sum()))
    if bought < required:
        needed = math.ceil(float(paid[required - 1]) * 1000) / 1000
        raise ValueError(
            f"budget {budget:g} cannot pay for {floor} unit(s) of every layer and kind; "
            f"the smallest feasible budget is {needed:g}"
        )
    return Allocation.of(units, order[:bought].tolist())


def buying_order(scores: Tensor, units: Units, floor: int = 0) -> tuple[Tensor, int]:
    """Positions of the units from first to last bought, and how many of them the floor asks for."""
    if scores.shape != (len(units),):
        raise ValueError(f"{len(units)} units need as many scores, not {tuple(scores.shape)}")
    if floor < 0:
        raise ValueError(f"a floor is 0 or more units, not {floor}")
    if not torch.isfinite(scores).all():
        raise ValueError("every score must be a finite number")
    wanted = scores.detach().cpu().double() / units.shares
    # Stable: gates start equal, so ties are real and must always fall the same way.
    ranking = torch.argsort(wanted, descending=True, stable=True)
    first: list[int] = []
    for (layer, kind), span in units.spans.items():
        if floor > span.stop - span.start:
            raise ValueError(
                f"a floor of {floor} is more than the {span.stop - span.start} {kind} "
                f"of layer {layer}"
            )
        first += [p for p in ranking.tolist() if span.start <= p < span.stop][:floor]
    in_floor = torch.zeros(len(units), dtype=torch.bool)
    in_floor[first] = True
    order = torch.cat([ranking[in_floor[ranking]], ranking[~in_floor[ranking]]])
    return order, len(first)


def pays_floor(scores: Tensor, units: Units, budget: float, floor: int) -> bool:
    """Whether a budget pays for the floor."""
    order, required = buying_order(scores, units, floor)
    shares = units.shares[order[:required]]
    return not required or float(shares.sum() - shares[-1] / 2) <= budget + _SLACK


def straight_through(z: Tensor, mask: Tensor) -> Tensor:
    """Gates whose value is the hard mask and whose gradient is that of z."""
    return mask + (z - z.detach())  # the bracket is exactly 0, so the value is exactly the mask
