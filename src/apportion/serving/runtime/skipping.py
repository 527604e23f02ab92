"""Hard skipping at run time: full weights, and each call computes only what its budget buys."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from apportion.elastic.elastic import Elastic, check_elastic
from apportion.method.allocation import allocate
from apportion.method.length import Schedule
from apportion.method.units import check_budget
from apportion.models.surgery import view
from apportion.serving.runtime.fusing import fuse

_BUDGETS = 64  # as many different budgets are remembered


class Skipping(nn.Module):
    """An elastic model made for serving: the hard form of any budget, at the speed of a cut model.

    The slices of a budget are made when it is first asked for and kept. They are the layers that
    lose units and no others, so a budget costs little memory; of a nested model they are views of
    the whole weights, and cost none. Gathering them in every call would cost more time than the
    skipped work saves. Threads share nothing that changes: each may ask for its own budget. The
    weights are those of the moment when this was made.
    """

    def __init__(self, elastic: Elastic, floor: int | None = None) -> None:
        super().__init__()
        check_elastic(elastic)
        self.whole = elastic.served()
        self.gates = copy.deepcopy(elastic.gates)
        self.units, self.lowest = elastic.units, elastic.lowest
        self.frontier = elastic.frontier
        self.floor = elastic.floor if floor is None else floor
        self._of_budget: dict[float, nn.Module] = {}
        self._of_kept: dict[tuple[tuple[bool, ...], Schedule | None], nn.Module] = {}
        self.eval()

    def forward(self, *args: Any, budget: float | None = None, **kwargs: Any) -> Any:
        """What the budget's units compute; without a budget, what all of them do."""
        model = self.whole if budget is None else self.at(budget)
        return model(*args, **kwargs)

    def prepare(self, *budgets: float) -> Skipping:
        """Makes the slices of some budgets now, so that the first call is as fast as the next."""
        for budget in budgets:
            self.at(budget)
        return self

    def at(self, budget: float) -> nn.Module:
        """The model that answers at a budget; it shares this one's memory."""
        if type(budget) is not float:  # or checking would take longer than finding
            budget = check_budget(budget)
        known = self._of_budget.get(budget)
        if known is not None:
            return known
        check_budget(budget, self.lowest)
        # Slices outlive this call, so they must not be tensors of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            width, schedule = budget, None
            if self.frontier is not None:
                width, schedule = self.frontier.width(budget), self.frontier.schedule(budget)
            kept = allocate(self.gates.scores(width), self.units, budget=width, floor=self.floor)
            model = self._of_kept.get((kept.kept, schedule))
            if model is None:
                model = fuse(view(self.whole, kept, schedule=schedule).eval())
        if len(self._of_budget) >= _BUDGETS:
            self._forget()
        # Two threads may both have made it; one of the two is kept, and either is right.
        model = self._of_kept.setdefault((kept.kept, schedule), model)
        self._of_budget[budget] = model
        return model

    def train(self, mode: bool = True) -> Skipping:
        """Nothing: a model that serves stays in evaluation mode, or dropout would be at work."""
        super().train(False)
        return self

    def _forget(self) -> None:
        self._of_budget.clear()
        self._of_kept.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Skipping:
        """What `to` and its kind do to the weights, the slices can't follow: they are made anew."""
        self._forget()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self
