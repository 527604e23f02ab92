"""Cutting: a smaller plain model that computes what the hard mask computes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import cast

import torch
from torch import Tensor, nn

from apportion.method.units import Allocation, Units
from apportion.models.shrinking import recount_heads
from apportion.models.sites import Site, find_sites


def cut(model: nn.Module, allocation: Allocation, *, share: bool = False) -> nn.Module:
    """A new model without the units that the allocation drops; the given one is left alone.

    A layer that keeps no heads costs nothing but its output projection's bias. With `share`, all
    that need not be sliced is the given model's own, tensors, modules and hooks: many cuts of one
    model cost little. A hook on a module of one is a hook on all, and so are `train` and `to` on
    a module that is not sliced.
    """
    spans = allocation.units.spans
    kinds = sorted({kind for _, kind in spans})
    # What deepcopy believes to have copied already is not copied.
    shared = _untouched(model, kinds) if share else ()
    smaller = copy.deepcopy(model, {id(part): part for part in shared})
    for site in find_sites(smaller, kinds, block=1):
        span = spans.get((site.layer, site.kind), slice(0, 0))
        site = _in_units(site, span.stop - span.start)
        indices = allocation.indices(site.layer, site.kind)
        _cut_site(smaller, site, kept_columns(site, indices), share)
    for name in AFTER_CUT:
        resolve_name(name)(smaller, allocation)
    return smaller


def _untouched(model: nn.Module, kinds: Sequence[str]) -> list[object]:
    """Tensors, modules in which no unit lives, and the hooks of the others: half of their size."""
    sites = find_sites(model, kinds, block=1)
    names = {name for site in sites for name in (*site.inputs, site.output)}
    above = {name[:at] for name in names for at in range(len(name)) if name[at] == "."} | names
    return [
        *model.parameters(),
        *model.buffers(),
        *(part for name, part in model.named_modules() if name and name not in above),
        *(v for part in model.modules() for name, v in vars(part).items() if "_hooks" in name),
    ]


def arrange(model: nn.Module, units: Units, before: Tensor) -> nn.Module:
    """A new model that computes the same with the units of each layer in another order.

    `before` has for each place the position of the unit that comes there, of its layer and kind.
    """
    arranged = copy.deepcopy(model)
    kinds = sorted({kind for _, kind in units.spans})
    for site in find_sites(arranged, kinds, block=1):
        span = units.spans.get((site.layer, site.kind), slice(0, 0))
        site = _in_units(site, span.stop - span.start)
        indices = [units.members[position].index for position in before[span].tolist()]
        assert sorted(indices) == list(range(site.count)), "units must stay in their layer"
        _cut_site(arranged, site, kept_columns(site, indices), share=False)
    return arranged


# Who has to know of each cut model: the room of another library's models, which then reload. It
# lies above this one, so it is imported by its name, with the first cut.
AFTER_CUT = ["apportion.models.reloading:remember_cut"]


def _in_units(site: Site, count: int) -> Site:
    """A site whose neurons are counted one by one, as `count` units."""
    neurons = site.count if site.kind == "feedforward" else site.count * site.width
    fits = neurons == 0 if count == 0 else neurons % count == 0
    if not fits or (site.kind == "heads" and count != site.count):
        raise ValueError(
            f"the allocation is for a model with {count} {site.kind} in layer {site.layer}, "
            f"not the {site.count} that this one has"
        )
    return replace(site, count=count, width=neurons // count if count else site.width)


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
