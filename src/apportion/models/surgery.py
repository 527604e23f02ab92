"""Cutting: a smaller plain model that computes what the hard mask computes."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from apportion.method.length import Schedule
from apportion.method.units import Allocation, Units
from apportion.models.reloading import remember_cut
from apportion.models.shortening import shorten
from apportion.models.shrinking import recount_heads
from apportion.models.sites import Site, encoder_path, find_sites, in_units


def cut(model: nn.Module, allocation: Allocation) -> nn.Module:
    """A new model without the units that the allocation drops; the given one is left alone.

    A layer that keeps no heads costs nothing but its output projection's bias. A model of
    Transformers saves what was kept, and reloads by it. Where the allocation has a schedule, the
    model drops tokens by it.
    """
    smaller = copy.deepcopy(model)
    _keep(smaller, allocation, share=False)
    _shorten(smaller, allocation.schedule)
    remember_cut(smaller, allocation)
    return smaller


def view(
    model: nn.Module, allocation: Allocation, *, schedule: Schedule | None = None
) -> nn.Module:
    """The model that `cut` returns, in the given one's memory: many views of one cost little.

    For calls alone: it does not save what was kept. Hooks on any module are shared, and so are
    `train()` and `to()` on modules that hold no units. Another schedule may take the place of the
    allocation's own.
    """
    sites = find_sites(model, allocation.units.kinds, block=1)
    names = {name for site in sites for name in (*site.inputs, site.output)}
    above = {name[:at] for name in names for at, letter in enumerate(name) if letter == "."}
    smaller = _twin(model, "", names | above)
    _keep(smaller, allocation, share=True)
    _shorten(smaller, schedule or allocation.schedule)
    return smaller


def _shorten(model: nn.Module, schedule: Schedule | None) -> None:
    if schedule is not None and not schedule.is_whole:
        encoder = model.get_submodule(encoder_path(model))
        shorten(encoder, schedule.shares, by_position=schedule.by_position)


def _twin(module: nn.Module, path: str, own: Collection[str]) -> nn.Module:
    """A module with its own tables of parts and tensors, down to the parts at these paths.

    All else is shared, hooks included, as in the replicas of torch's data parallelism: hook tables
    are half of a module's memory.
    """
    twin = copy.copy(module)
    for table in ("_parameters", "_buffers", "_modules"):
        setattr(twin, table, getattr(module, table).copy())
    for name, part in module.named_children():
        inside = f"{path}.{name}".lstrip(".")
        if inside in own:
            setattr(twin, name, _twin(part, inside, own))
    return twin


def arrange(model: nn.Module, units: Units, before: Tensor) -> nn.Module:
    """A new model that computes the same with the units of each layer in another order.

    `before` holds, for each place, the present position of the unit that comes there; units stay
    in their layer and kind.
    """
    arranged = copy.deepcopy(model)
    for site, span in _sites_in_units(arranged, units):
        indices = [units.members[position].index for position in before[span].tolist()]
        assert sorted(indices) == list(range(site.count)), "units must stay in their layer"
        _cut_site(arranged, site, kept_columns(site, indices), share=False)
    return arranged


def _keep(model: nn.Module, allocation: Allocation, share: bool) -> None:
    """Slices a model's matrices, in place, down to the units of an allocation."""
    for site, _ in _sites_in_units(model, allocation.units):
        indices = allocation.indices(site.layer, site.kind)
        _cut_site(model, site, kept_columns(site, indices), share)


def _sites_in_units(model: nn.Module, units: Units) -> Iterator[tuple[Site, slice]]:
    """The sites of a model, counted in these units, each with the positions of its units."""
    for site in find_sites(model, units.kinds, block=1):
        span = units.spans.get((site.layer, site.kind), slice(0, 0))
        yield in_units(site, span.stop - span.start), span


def kept_columns(site: Site, indices: list[int]) -> Tensor:
    """The columns of the site's output matrix (rows of its inputs) that these units own."""
    first = torch.tensor(indices, dtype=torch.long)[:, None] * site.width
    return (first + torch.arange(site.width)).flatten()


def _cut_site(model: nn.Module, site: Site, columns: Tensor, share: bool) -> None:
    for name in site.inputs:
        linear = cast(nn.Linear, model.get_submodule(name))
        linear.weight = _slice(linear.weight, columns, 0, share)
        if linear.bias is not None:
            linear.bias = _slice(linear.bias, columns, 0, share)
        linear.out_features = len(columns)
    last = cast(nn.Linear, model.get_submodule(site.output))
    last.weight = _slice(last.weight, columns, 1, share)
    last.in_features = len(columns)
    if site.kind == "heads":
        heads = len(columns) // site.width
        recount_heads(model, site.inputs[0], site.output, site.attention, heads)


def _slice(values: Tensor, columns: Tensor, dim: int, share: bool) -> nn.Parameter:
    """These rows or columns of a matrix; a run of neighbours needs no memory of its own."""
    count = len(columns)
    if share and count and int(columns[-1]) - int(columns[0]) + 1 == count:
        return nn.Parameter(values.detach().narrow(dim, int(columns[0]), count))
    return nn.Parameter(values.detach().index_select(dim, columns.to(values.device)).contiguous())
