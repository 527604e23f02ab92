"""The units of a model, what each costs, and which of them an allocation keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from apportion.method.length import Schedule

KINDS = ("heads", "feedforward")  # also their order inside a layer
UNITS = {"heads": ("heads",), "all": KINDS}  # as people ask for them


def check_budget(budget: Any, lowest: float | None = None) -> float:
    """The budget as a float, if it is one number in (0, 1] and not below the lowest."""
    given = budget.item() if getattr(budget, "ndim", None) == 0 else budget  # torch and numpy
    if type(given) is bool or not isinstance(given, Real | Decimal):
        shape = tuple(getattr(budget, "shape", ()))
        shown = f"{type(budget).__name__} of shape {shape}" if shape else repr(budget)
        raise ValueError(f"a budget is one number in (0, 1], such as 0.5, not {shown}")
    try:
        value = float(given)
    except OverflowError:  # of a whole number with hundreds of digits
        value = math.inf
    if not 0.0 < value <= 1.0:
        raise ValueError(f"a budget is a fraction in (0, 1], not {value:g}")
    _check_lowest(value, lowest)
    return value


def check_budgets(budgets: Tensor, lowest: float | None = None) -> Tensor:
    """Budgets, one number per example, if each of them is in (0, 1] and not below the lowest."""
    if budgets.dim() > 1 or budgets.is_complex() or budgets.dtype == torch.bool:
        raise ValueError(
            f"budgets are numbers in (0, 1], one an example, not {budgets.dtype} of shape "
            f"{tuple(budgets.shape)}"
        )
    if not bool(((budgets > 0.0) & (budgets <= 1.0)).all()):
        raise ValueError(f"budgets are fractions in (0, 1], not {budgets.tolist()}")
    if budgets.numel():
        _check_lowest(float(budgets.min()), lowest)
    return budgets


def _check_lowest(budget: float, lowest: float | None) -> None:
    # A float32 that was 0.1 is a little more or less.
    if lowest is not None and budget < lowest - 1e-6:
        raise ValueError(
            f"budget {budget:g} is below what this model was made for; the smallest is {lowest:g}"
        )


@dataclass(frozen=True, order=True)
class Unit:
    """What can be switched off: the index-th head or feed-forward block of a layer."""

    layer: int
    kind_order: int
    index: int

    @property
    def kind(self) -> str:
        """Its name in `KINDS`."""
        return KINDS[self.kind_order]


@dataclass(frozen=True)
class Units:
    """All units of a model in (layer, kind, index) order, each with its cost.

    Costs are in any one measure (the paper's heads cost 1 each); only their shares matter.
    """

    members: tuple[Unit, ...]
    costs: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.members) == len(self.costs)
        assert list(self.members) == sorted(set(self.members)), "units out of order"
        if not self.members:
            raise ValueError("a model with no units has nothing to allocate")
        if min(self.costs) <= 0:
            raise ValueError(f"every unit must cost something, not {min(self.costs)}")

    @classmethod
    def grid(cls, layers: int, heads: int) -> Units:
        """The paper's units: equal heads in equal layers, each of cost 1."""
        members = tuple(Unit(layer, 0, head) for layer in range(layers) for head in range(heads))
        return cls(members, (1.0,) * len(members))

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Unit]:
        return iter(self.members)

    @cached_property
    def shares(self) -> Tensor:
        """Each unit's share of the whole cost [units]; they sum to 1."""
        costs = torch.tensor(self.costs, dtype=torch.float64)
        return costs / costs.sum()

    @cached_property
    def spans(self) -> dict[tuple[int, str], slice]:
        """Where the units of a (layer, kind) stand: always one run, because of the order."""
        bounds: dict[tuple[int, str], slice] = {}
        for position, unit in enumerate(self.members):
            key = (unit.layer, unit.kind)
            start = bounds[key].start if key in bounds else position
            bounds[key] = slice(start, position + 1)
        return bounds

    @property
    def layers(self) -> int:
        """How many layers there are, up to the last one with units."""
        return 1 + max(layer for layer, _ in self.spans)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that there are, in the order of `KINDS`."""
        found = {kind for _, kind in self.spans}
        return tuple(kind for kind in KINDS if kind in found)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: `[layer, kind, count, cost of one]` for each run of equal units."""
        runs = []
        for (layer, kind), span in self.spans.items():
            costs = set(self.costs[span])
            assert len(costs) == 1, "units of one layer and kind cost the same"
            runs.append([layer, kind, span.stop - span.start, costs.pop()])
        return {"runs": runs}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Units:
        """The inverse of `to_dict`."""
        members: list[Unit] = []
        costs: list[float] = []
        for layer, kind, count, cost in data["runs"]:
            if kind not in KINDS:
                raise ValueError(f"unknown kind of unit {kind!r}; known: {', '.join(KINDS)}")
            members += [Unit(int(layer), KINDS.index(kind), index) for index in range(count)]
            costs += [float(cost)] * count
        return cls(tuple(members), tuple(costs))


@dataclass(frozen=True)
class Allocation:
    """Which units stay and, where a schedule shortens texts, how many tokens each layer reads."""

    units: Units
    kept: tuple[bool, ...]
    schedule: Schedule | None = None
    short_costs: tuple[float, ...] | None = None  # of the units, on as few tokens

    def __post_init__(self) -> None:
        assert len(self.kept) == len(self.units)
        assert (self.schedule is None) == (self.short_costs is None)
        assert self.short_costs is None or len(self.short_costs) == len(self.units)

    @classmethod
    def everything(cls, units: Units) -> Allocation:
        """Every unit stays: the dense model."""
        return cls(units, (True,) * len(units))

    @classmethod
    def of(cls, units: Units, chosen: Iterable[int]) -> Allocation:
        """The units at these positions stay, the others go."""
        positions = set(chosen)
        return cls(units, tuple(position in positions for position in range(len(units))))

    @property
    def cost(self) -> float:
        """The share of the units' whole cost that stays, in [0, 1]."""
        if self.short_costs is not None:
            paid = sum(c for c, kept in zip(self.short_costs, self.kept, strict=True) if kept)
            return paid / sum(self.units.costs)
        return float(self.units.shares[torch.tensor(self.kept)].sum())

    @property
    def count(self) -> int:
        """How many units stay."""
        return sum(self.kept)

    def shortened(self, schedule: Schedule, costs: Sequence[float]) -> Allocation:
        """The same units on fewer tokens; on all of them, if that is what the schedule says."""
        if schedule.is_whole:
            return replace(self, schedule=None, short_costs=None)
        return replace(self, schedule=schedule, short_costs=tuple(costs))

    def mask(self) -> Tensor:
        """1.0 for a unit that stays, 0.0 for one that goes [units]."""
        return torch.tensor(self.kept, dtype=torch.float32)

    def indices(self, layer: int, kind: str) -> list[int]:
        """The indices of a layer's units of a kind that stay."""
        span = self.units.spans.get((layer, kind))
        if span is None:
            return []
        members = zip(self.units.members[span], self.kept[span], strict=True)
        return [unit.index for unit, kept in members if kept]

    def to_dict(self) -> dict[str, dict[str, list[int]]]:
        """Plain JSON for people: `{"layer 0": {"heads": [0, 3]}, …}`, empty layers included."""
        layers: dict[str, dict[str, list[int]]] = {}
        for layer, kind in self.units.spans:
            layers.setdefault(f"layer {layer}", {})[kind] = self.indices(layer, kind)
        return layers

    @classmethod
    def from_dict(cls, units: Units, data: Mapping[str, Mapping[str, Sequence[int]]]) -> Allocation:
        """The inverse of `to_dict`, for the units of the same model."""
        kept = []
        for unit in units:
            try:
                indices = data[f"layer {unit.layer}"][unit.kind]
            except KeyError:
                raise ValueError(
                    f"the allocation says nothing of the {unit.kind} of layer {unit.layer}"
                ) from None
            kept.append(unit.index in indices)
        allocation = cls(units, tuple(kept))
        if allocation.to_dict() != {k: dict(v) for k, v in data.items()}:
            raise ValueError("the allocation names units that this model does not have")
        return allocation
