"""Cutting: a smaller plain model that computes what the hard mask computes."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from apportion.sites import Site, find_sites
from apportion.units import Allocation


def cut(model: nn.Module, allocation: Allocation) -> nn.Module:
    """A new model without the units that the allocation drops; the given one is left alone.

    A layer that keeps no heads costs nothing but its output projection's bias.
    """
    smaller = copy.deepcopy(model)
    spans = allocation.units.spans
    kinds = sorted({kind for _, kind in spans})
    found = {(site.layer, site.kind): site for site in find_sites(smaller, kinds)}
    if {key: span.stop - span.start for key, span in spans.items()} != {
        key: site.count for key, site in found.items() if site.count
    }:
        raise ValueError("the allocation is for a model with other units than this one has")
    for layer, kind in spans:
        site = found[layer, kind]
        _cut_site(smaller, site, kept_columns(site, allocation.indices(layer, kind)))
    return smaller


def kept_columns(site: Site, indices: list[int]) -> Tensor:
    """The columns of the site's output matrix (rows of its inputs) that these units own."""
    first = torch.tensor(indices, dtype=torch.long)[:, None] * site.width
    return (first + torch.arange(site.width)).flatten()


def _cut_site(model: nn.Module, site: Site, columns: Tensor) -> None:
    for name in site.inputs:
        linear = cast(nn.Linear, model.get_submodule(name))
        linear.weight = nn.Parameter(linear.weight.detach()[columns])
        if linear.bias is not None:
            linear.bias = nn.Parameter(linear.bias.detach()[columns])
        linear.out_features = len(columns)
    last = cast(nn.Linear, model.get_submodule(site.output))
    last.weight = nn.Parameter(last.weight.detach()[:, columns].contiguous())
    last.in_features = len(columns)
