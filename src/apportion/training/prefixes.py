"""Calling a nested model through views of its weights: a budget costs its share of a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from apportion.elastic.elastic import Elastic, check_computed_once
from apportion.method.length import Schedule
from apportion.method.units import Allocation
from apportion.models.sites import find_sites
from apportion.models.surgery import view

_SHAPES = 256  # as many different allocations are remembered


class Views:
    """A nested elastic model, called at one allocation after the other while it is trained.

    Units that are switched off are not computed, and gradients reach the rows and columns in use.
    Weights are looked up in every call, so they may change between two. `wrap` replaces the call,
    as mixed precision does.
    """

    def __init__(
        self,
        elastic: Elastic,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call,
    ) -> None:
        if elastic.form != "nested":
            raise ValueError("only of a nested model is every budget a view; `elastic.nested()`")
        check_computed_once(elastic.model)
        self.elastic = elastic
        self.sites = find_sites(elastic.model, elastic.kinds, elastic.block)
        self._empty = elastic.served().to("meta")  # its parts, without their weights
        self._shapes: dict[tuple[tuple[bool, ...], Schedule | None], nn.Module] = {}
        self._call = wrap(functional_call)

    def __call__(self, kept: Allocation, **inputs: Any) -> Any:
        """What the kept units compute."""
        model = self.shape(kept).train(self.elastic.training)
        return self._call(model, self._weights(kept), (), inputs)

    def shape(self, kept: Allocation) -> nn.Module:
        """The modules that compute it, without any weights."""
        key = (kept.kept, kept.schedule)
        if key not in self._shapes:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            self._shapes[key] = view(self._empty, kept)
        return self._shapes[key]

    def _weights(self, kept: Allocation) -> dict[str, Tensor]:
        """The model's tensors by name, each as far as the kept units reach."""
        model = self.elastic.model
        weights: dict[str, Tensor] = {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
        }
        for site in self.sites:
            indices = kept.indices(site.layer, site.kind)
            assert indices == list(range(len(indices))), "not a prefix: is the model nested?"
            columns = len(indices) * site.width
            for name in site.inputs:
                for part in ("weight", "bias"):
                    if f"{name}.{part}" in weights:
                        weights[f"{name}.{part}"] = weights[f"{name}.{part}"][:columns]
            weights[f"{site.output}.weight"] = weights[f"{site.output}.weight"][:, :columns]
        return weights
