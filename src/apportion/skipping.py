"""Hard skipping at run time: full weights, and each call computes only what its budget buys."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from apportion.allocation import allocate
from apportion.elastic import Elastic
from apportion.surgery import cut
from apportion.units import Allocation

_BUDGETS = 64  # as many different budgets are remembered


class Skipping(nn.Module):
    """An elastic model made for serving: the hard form of any budget, at the speed of a cut model.

    The slices of a budget are made when it is first asked for and kept. They are the layers that
    lose units and no others, so a budget costs little memory. Gathering them in every call would
    cost more time than the skipped work saves. Threads share nothing that changes: each may ask
    for its own budget. The weights are those of the moment when this was made.
    """

    def __init__(self, elastic: Elastic, floor: int = 0) -> None:
        super().__init__()
        self.whole = elastic.plain().eval()
        self.units, self.floor = elastic.units, floor
        self.gates = copy.deepcopy(elastic.gates)
        self._of_budget = lru_cache(_BUDGETS)(self._slice)
        self._of_allocation = lru_cache(_BUDGETS)(self._cut)

    def forward(self, *args: Any, budget: float | None = None, **kwargs: Any) -> Any:
        """What the budget's units compute; without a budget, what all of them do."""
        model = self.whole if budget is None else self._of_budget(budget)
        return model(*args, **kwargs)

    def prepare(self, *budgets: float) -> Skipping:
        """Makes the slices of some budgets now, so that the first call is as fast as the next."""
        for budget in budgets:
            self._of_budget(budget)
        return self

    def at(self, budget: float) -> nn.Module:
        """The model that answers at a budget; it shares this one's memory."""
        return self._of_budget(budget)

    @torch.no_grad()
    def _slice(self, budget: float) -> nn.Module:
        return self._of_allocation(allocate(self.gates(budget), self.units, budget, self.floor))

    def _cut(self, allocation: Allocation) -> nn.Module:
        return cut(self.whole, allocation, share=True).eval()
