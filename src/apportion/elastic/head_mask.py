"""Heads by number, as Transformers had them until version 5: masked in a call, or pruned for good.

Both work on every architecture in `sites.ARCHITECTURES` and with any attention kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from apportion.elastic.elastic import Elastic
from apportion.method.units import Allocation
from apportion.models.sites import find_sites, units_of
from apportion.models.surgery import cut


def prune_heads(model: nn.Module, heads: Mapping[int, Iterable[int]]) -> nn.Module:
    """A new, smaller model without these heads, given as `{layer: [heads]}`.

    The numbers are those of the given model; a layer may lose all of its heads.
    """
    units = units_of(find_sites(model, ("heads",)), length=1)
    kept = list(range(len(units)))
    for layer, numbers in heads.items():
        span = units.spans.get((layer, "heads"))
        for number in numbers:
            if span is None or not 0 <= number < span.stop - span.start:
                there = "no heads" if span is None else f"heads 0 to {span.stop - span.start - 1}"
                raise ValueError(f"layer {layer} has {there}, so head {number} can't be pruned")
            if span.start + number in kept:
                kept.remove(span.start + number)
    return cut(model, Allocation.of(units, kept))


class HeadMask(nn.Module):
    """A copy of a model whose call takes a `head_mask`.

    The mask holds a number for each head, [heads] for all layers alike or [layers, heads]: 1 keeps
    a head, 0 masks it, anything between scales its output. Gradients reach the mask. Threads may
    each give their own.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.elastic = Elastic(model)
        spans = self.elastic.units.spans.values()
        self.shape = (len(spans), max(span.stop - span.start for span in spans))
        self.even = len(self.elastic.units) == self.shape[0] * self.shape[1]

    def forward(self, *args: Any, head_mask: Tensor | None = None, **kwargs: Any) -> Any:
        """What the model returns with its heads masked; without a mask, as it is."""
        if head_mask is None:
            return self.elastic(*args, **kwargs)
        if not self.even:
            raise ValueError("the layers of this model have different numbers of heads")
        if tuple(head_mask.shape) not in (self.shape, self.shape[1:]):
            raise ValueError(
                f"head_mask must be of shape {self.shape} or {self.shape[1:]}, "
                f"not {tuple(head_mask.shape)}"
            )
        z = head_mask.expand(self.shape).flatten()
        return self.elastic(*args, z=z, **kwargs)
