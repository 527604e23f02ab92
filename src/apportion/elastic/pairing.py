"""Pairing: which share of the units and which schedule of tokens a budget buys.

One budget can buy width, length, or some of both. `default_frontier` shares it by a rule, for
training to begin with. `find_frontier` measures, on texts without their labels: at each budget,
pairs of the same cost are tried, and the one whose answers come nearest to the whole model's is
taken. It goes from the largest budget down, so that no smaller one buys more of either.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from apportion.data.task import Split
from apportion.elastic.elastic import Elastic, logits_of
from apportion.method.allocation import allocate
from apportion.method.frontier import Frontier
from apportion.method.length import LEAST, Schedule, never_more
from apportion.method.units import Allocation, check_budget
from apportion.models.readout import check_first_token
from apportion.models.surgery import view

AXES = ("width", "length", "both")
PAIRED_AT = (0.125, 0.25, 0.375, 0.5, 0.75)
_LASTS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)  # shares that the last layer reads
_CROPS = (1.0, 0.75, 0.5)
_NARROW = (0.35, 0.25, 0.18, 0.125)  # where length pays everything
_ROWS, _BATCH, _PROMISING = 128, 32, 3  # pairs are measured on a batch, promising ones on all rows
_STEEP = {"both": 6.0, "length": 3.0}  # how much faster the first layer's share rises to 1
_ROOT = 1 / 3  # without measuring, length pays this power of the budget: 0.79 of 0.5, 0.5 of 0.125


def check_axis(axis: str) -> str:
    """The axis, if it is one."""
    if axis not in AXES:
        raise ValueError(f"an axis is one of {', '.join(AXES)}, not {axis!r}")
    return axis


def paired_at(lowest: float) -> tuple[float, ...]:
    """The budgets of a frontier from a lowest one up."""
    return (lowest, *(budget for budget in PAIRED_AT if budget > lowest))


def check_all_tokens(model: Elastic, done: str) -> None:
    """Refuses a model with a frontier, where what is done is of all tokens."""
    if model.frontier is not None:
        raise ValueError(f"a model is {done} before its frontier is found: `shortened(None)`")


def default_frontier(
    model: Elastic,
    axis: str = "both",
    *,
    budgets: Sequence[float] = PAIRED_AT,
    crop: bool = True,
    by_position: bool = False,
) -> Frontier:
    """A frontier by rule: length pays the cube root of a budget, and width the rest; or all.

    Without a crop, the first layer reads all tokens.
    """
    pairs = _Pairs(model, axis, crop=crop, by_position=by_position)
    found: list[tuple[float, float, Schedule]] = [(1.0, 1.0, Schedule.everything(pairs.layers))]
    for budget in _down(budgets):
        share = budget if axis == "length" else budget**_ROOT
        # A short last layer crops the text, too: the first one is the dearest to read it all.
        schedule = pairs.longest(share, partial(pairs.cropped, steep=_STEEP[axis]))
        width = pairs.width(schedule, budget)
        if width is None:
            raise ValueError(
                f"no pair of width and length costs as little as {budget:g} at {model.length} "
                "tokens; take a larger budget, or the axis width"
            )
        found.append((budget, min(width, found[-1][1]), schedule))
    return _frontier(found)


@torch.no_grad()
def find_frontier(
    model: Elastic,
    split: Split,
    *,
    axis: str = "both",
    budgets: Sequence[float] = PAIRED_AT,
    crop: bool = True,
    by_position: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Elastic, dict[str, Any]]:
    """A nested model with the frontier that measuring on rows of a split found, and what it took.

    Labels are not used. The given model is left alone.
    """
    started = time.perf_counter()
    pairs = _Pairs(model, axis, crop=crop, by_position=by_position)
    rows = split.take(torch.arange(len(split))[:_ROWS])
    run = _Measuring(pairs, rows)
    found: list[tuple[float, float, Schedule]] = [(1.0, 1.0, Schedule.everything(pairs.layers))]
    apart: dict[str, float] = {}
    todo = _down(budgets)
    for number, budget in enumerate(todo, start=1):
        tried = list(pairs.at(budget, widest=found[-1][1], longest=found[-1][2]))
        if not tried:
            raise ValueError(
                f"no pair of width and length costs as little as {budget:g} at {model.length} "
                "tokens; take a larger budget, or the axis width"
            )
        promising = sorted(tried, key=lambda pair: run.apart(pair[0], pair[1], 1))[:_PROMISING]
        width, schedule = min(promising, key=lambda pair: run.apart(pair[0], pair[1]))
        apart[str(budget)] = float(f"{run.apart(width, schedule):.4g}")
        found.append((budget, width, schedule))
        if progress:
            progress(number, len(todo))
    frontier = _frontier(found)
    made = copy.deepcopy(model).shortened(frontier)
    facts = {
        "frontier": frontier.to_dict()["points"],  # budget, width, share of each layer
        "frontier_rows": len(rows),
        "frontier_passes": round(run.passes),  # of a row through the whole model
        "frontier_apart": apart,  # divergence from the whole model
        "frontier_seconds": round(time.perf_counter() - started, 1),
    }
    return made, facts


def _down(budgets: Sequence[float]) -> list[float]:
    """Budgets below 1 from the largest down."""
    return sorted({check_budget(budget) for budget in budgets} - {1.0}, reverse=True)


def _frontier(found: Sequence[tuple[float, float, Schedule]]) -> Frontier:
    budgets, widths, schedules = zip(*reversed(found), strict=True)
    return Frontier(budgets, widths, schedules)


class _Pairs:
    """Pairs of width and schedule, by what they cost."""

    def __init__(
        self, model: Elastic, axis: str, *, crop: bool = True, by_position: bool = False
    ) -> None:
        if check_axis(axis) == "width":
            raise ValueError("a frontier has length on its axis: length, or both")
        if model.form != "nested":
            raise ValueError("only a nested model can drop tokens by its budget; `nested()`")
        check_first_token(model.model)
        self.model, self.axis = model, axis
        self.crop, self.by_position = crop, by_position
        self.layers = model.units.layers
        # The smallest share that names as many tokens as a layer reads at least.
        self.least = min(1.0, -(-LEAST * 1000 // model.length) / 1000)
        self._costs: dict[Schedule, tuple[float, ...]] = {}

    def units(self, width: float) -> Allocation:
        """The units of a width, on all tokens."""
        scores = self.model.gates.scores(width)
        return allocate(scores, self.model.units, budget=width, floor=self.model.floor)

    def cost(self, width: float, schedule: Schedule) -> float:
        """What a pair costs, at the length where units have their costs."""
        kept = self.units(width)
        if schedule not in self._costs:
            short = self.model.on_fewer(kept, schedule).short_costs
            self._costs[schedule] = kept.units.costs if short is None else short
        return kept.shortened(schedule, self._costs[schedule]).cost

    def width(self, schedule: Schedule, budget: float) -> float | None:
        """The largest width that a budget pays for with a schedule; None if there is none."""
        if self.axis == "length":
            return 1.0 if self.cost(1.0, schedule) <= budget + 0.005 else None
        low, high = budget, 1.0  # fewer tokens leave more for units
        try:
            if self.cost(high, schedule) <= budget:
                return high
            for _ in range(16):
                middle = (low + high) / 2
                low, high = (
                    (middle, high) if self.cost(middle, schedule) <= budget else (low, middle)
                )
        except ValueError:  # so narrow that it does not pay the floor
            return None
        return low

    def shape(self, last: float, crop: float = 1.0, start: int = 0) -> Schedule:
        """Layers up to `start` read a crop; after it, shares fall by one factor to the last."""
        crop = min(1.0, max(crop, self.least)) if self.crop else 1.0
        last = min(crop, max(last, self.least))
        steps = max(1, self.layers - 1 - start)
        return Schedule(
            tuple(
                crop * (last / crop) ** (max(0, layer - start) / steps)
                for layer in range(self.layers)
            ),
            self.by_position,
        )

    def cropped(self, last: float, steep: float) -> Schedule:
        """Shares that fall by one factor to the last, from a crop that is the narrower with it."""
        return self.shape(last, self.least + steep * (last - self.least))

    def scaled(self, factor: float, given: Schedule) -> Schedule:
        """A schedule with every share times a factor, but for a first one that is no crop."""
        first, *others = (max(self.least, factor * share) for share in given.shares)
        return Schedule((first if self.crop else 1.0, *others), self.by_position)

    def longest(self, share: float, of_last: Callable[[float], Schedule]) -> Schedule:
        """The longest of some schedules whose cost, with all units, is at most a share."""
        low, high = self.least, 1.0
        for _ in range(12):
            middle = (low + high) / 2
            fits = self.cost(1.0, of_last(middle)) <= share
            low, high = (middle, high) if fits else (low, middle)
        return of_last(low)

    def at(
        self, budget: float, *, widest: float, longest: Schedule
    ) -> Iterator[tuple[float, Schedule]]:
        """Pairs that cost a budget, none of them wider or longer than another one."""
        starts = range(max(1, self.layers // 2 + 1))
        if self.axis == "length":
            shapes = [
                self.longest(budget, partial(self.shape, crop=crop, start=start))
                for crop in (*_CROPS, *_NARROW)
                for start in starts
            ]
            # What a larger budget took may be so steep that no shape stays below it.
            shapes.append(self.longest(budget, partial(self.scaled, given=longest)))
        else:
            shapes = [
                self.shape(last, crop, start)
                for crop in _CROPS
                for start in starts
                for last in _LASTS
                if last <= crop
            ]
        for schedule in dict.fromkeys([*shapes, longest]):
            if never_more(schedule, longest.shares):
                width = self.width(schedule, budget)
                if width is not None:
                    yield min(width, widest), schedule


class _Measuring:
    """How far pairs are from the whole model, on some rows."""

    def __init__(self, pairs: _Pairs, rows: Split) -> None:
        self.pairs, self.criterion = pairs, rows.criterion
        self.whole = pairs.model.served().eval()
        device = pairs.model.gates.a.device
        batches = [
            {name: values.to(device) for name, values in inputs.items()}
            for inputs, _ in rows.batches(_BATCH)
        ]
        # Batches are of like lengths: the first one to be asked is of middling ones.
        middle = len(batches) // 2
        self.batches = [*batches[middle:], *batches[:middle]]
        self.answers = [logits_of(self.whole(**inputs)) for inputs in self.batches]
        self.passes = 0.0
        self._known: dict[tuple[float, Schedule, int], float] = {}

    def apart(self, width: float, schedule: Schedule, batches: int | None = None) -> float:
        """The mean divergence from the whole model on the first batches, or on all of them."""
        numbers = range(len(self.batches))[:batches]
        cost = self.pairs.cost(width, schedule)
        smaller = view(self.whole, self.pairs.units(width), schedule=schedule).eval()
        total = rows = 0.0
        for number in numbers:
            wanted = self.answers[number]
            if (width, schedule, number) not in self._known:
                logits = logits_of(smaller(**self.batches[number]))
                found = float(self.criterion.divergence(logits, wanted))
                self._known[width, schedule, number] = found * len(wanted)
                self.passes += cost * len(wanted)
            total += self._known[width, schedule, number]
            rows += len(wanted)
        return total / rows
