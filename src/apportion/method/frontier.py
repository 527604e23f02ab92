"""The frontier: which pair of width and length a budget buys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from apportion.method.length import Schedule, never_more
from apportion.method.units import check_budget


@dataclass(frozen=True)
class Frontier:
    """Budgets from the smallest to 1, each with the share of units that it buys and a schedule.

    Neither ever falls where the budget rises, and a budget of 1 buys everything. Between two
    budgets, width and shares lie between theirs; below the smallest, the schedule stays and the
    width shrinks with the budget.
    """

    budgets: tuple[float, ...]
    widths: tuple[float, ...]
    schedules: tuple[Schedule, ...]

    def __post_init__(self) -> None:
        counts = {len(self.budgets), len(self.widths), len(self.schedules)}
        if len(counts) > 1 or not self.budgets:
            raise ValueError("a frontier has a width and a schedule for each of its budgets")
        for number in (*self.budgets, *self.widths):
            check_budget(number)
        if len({len(schedule.shares) for schedule in self.schedules}) > 1:
            raise ValueError("the schedules of a frontier are of one model, of as many layers")
        whole = (self.budgets[-1], self.widths[-1], self.schedules[-1].is_whole)
        if whole != (1.0, 1.0, True):
            raise ValueError("a frontier ends at budget 1, which buys all units and all tokens")
        for (low, less, short), (high, more, long) in pairwise(
            zip(self.budgets, self.widths, self.schedules, strict=True)
        ):
            if not (low < high and less <= more and never_more(short, long.shares)):
                raise ValueError(
                    f"a budget of {high:g} can't buy less than {low:g} does: width {more:g} after "
                    f"{less:g}, shares {list(long.shares)} after {list(short.shares)}"
                )

    def check(self, layers: int, length: int) -> None:
        """Complains of schedules that a model of so many layers and tokens can't follow."""
        shares = len(self.schedules[0].shares)
        if shares != layers:
            raise ValueError(
                f"the schedules of a model of {layers} layers have as many shares, not {shares}"
            )
        for schedule in self.schedules:
            schedule.check_length(length)

    def width(self, budget: float) -> float:
        """The share of units that a budget buys."""
        if budget < self.budgets[0]:
            return self.widths[0] * budget / self.budgets[0]
        above, way = self._between(budget)
        low = self.widths[max(0, above - 1)]
        return low + way * (self.widths[above] - low)

    def schedule(self, budget: float) -> Schedule:
        """How many tokens each layer reads at a budget."""
        above, way = self._between(budget)
        return self.schedules[max(0, above - 1)].towards(self.schedules[above], way)

    def _between(self, budget: float) -> tuple[int, float]:
        """The number of the next budget above, and the share of the way there."""
        above = bisect_left(self.budgets, budget)
        if above == 0 or self.budgets[above] == budget:
            return above, 1.0
        low, high = self.budgets[above - 1], self.budgets[above]
        return above, (budget - low) / (high - low)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: `[budget, width, [share of each layer]]` for each budget."""
        points = zip(self.budgets, self.widths, self.schedules, strict=True)
        by_position = any(schedule.by_position for schedule in self.schedules)
        return {
            "points": [[budget, width, list(s.shares)] for budget, width, s in points],
            **({"by_position": True} if by_position else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Frontier:
        """The inverse of `to_dict`."""
        try:
            points = [(budget, width, tuple(shares)) for budget, width, shares in data["points"]]
            by_position = bool(data.get("by_position", False))
        except (KeyError, TypeError, ValueError):
            raise ValueError("a frontier has points of budget, width and shares") from None
        return cls(
            tuple(budget for budget, _, _ in points),
            tuple(width for _, width, _ in points),
            tuple(Schedule(shares, by_position) for _, _, shares in points),
        )
