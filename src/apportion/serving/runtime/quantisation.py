"""Quantisation: static scales from texts, so that an answer does not depend on its batch mates.

Dynamic quantisation takes one scale per tensor, from all rows of a batch: a row's answer then
changes with the rows beside it. A scale per linear layer, fixed over texts and levels, does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apportion.elastic.elastic import Elastic
from apportion.models.sites import find_sites
from apportion.models.surgery import view

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Scale:
    """Where a linear layer's inputs lie: x ≈ size · (q - zero), q from 0 to 255."""

    size: float
    zero: int
    bits: int = 8  # of the weights; 7 where products of 8 bits saturate

    @classmethod
    def of(cls, low: float, high: float, bits: int) -> Scale:
        """The scale of a range, which is widened to hold zero."""
        low, high = min(low, 0.0), max(high, 0.0)
        size = (high - low) / 255 or 1.0
        return cls(size, round(-low / size), bits)


def quantise_columns(weight: NDArray[Any], bits: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A weight [inputs, outputs] as int8, and the scale of each column; symmetric."""
    largest = 2 ** (bits - 1) - 1
    sizes = np.abs(weight).max(axis=0) / largest
    sizes = np.where(sizes == 0, 1.0, sizes).astype(np.float32)
    return np.clip(np.rint(weight / sizes), -largest, largest).astype(np.int8), sizes


@torch.no_grad()
def calibrate_scales(
    model: Elastic, batches: Iterable[Inputs], levels: Sequence[float], *, bits: int = 8
) -> dict[str, Scale]:
    """The scale of what each linear layer of the sites is given, over some texts and all levels."""
    whole = model.plain().eval()
    batches = [dict(batch) for batch in batches]
    if not batches:
        raise ValueError("static scales need texts to be taken from")
    ranges: dict[str, tuple[float, float]] = {}
    paths = [
        path for site in find_sites(model.model, block=1) for path in (site.inputs[0], site.output)
    ]
    for level in levels:
        at_level = view(whole, model.allocation(level)).eval()
        for batch in batches:
            with _watching(at_level, paths, batch["attention_mask"], ranges):
                at_level(**batch)
    return {path: Scale.of(*ranges.get(path, (0.0, 1.0)), bits) for path in paths}


@contextmanager
def _watching(
    model: nn.Module,
    paths: Sequence[str],
    mask: Tensor,
    ranges: dict[str, tuple[float, float]],
) -> Iterator[None]:
    """Widens the ranges by what the layers at some paths are given; padding does not count."""
    real = mask.bool()

    def watch(path: str) -> Any:
        def see(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            states = args[0][real] if args[0].shape[:2] == real.shape else args[0]
            if states.numel():
                low, high = ranges.get(path, (0.0, 0.0))
                ranges[path] = (min(low, float(states.min())), max(high, float(states.max())))

        return see

    hooks = []
    for path in paths:
        try:
            module = model.get_submodule(path)
        except AttributeError:
            continue  # of a layer that keeps nothing at this level
        hooks.append(module.register_forward_pre_hook(watch(path)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
