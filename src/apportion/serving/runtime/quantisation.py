"""Quantisation: static scales from texts, so that an answer does not depend on its batch mates.

Dynamic quantisation takes one scale per tensor, from all rows of a batch: a row's answer then
changes with the rows beside it. A scale per linear layer, fixed over texts and levels, does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apportion.elastic.elastic import Elastic
from apportion.models.readout import read_first_token
from apportion.models.shortening import own_tokens
from apportion.models.sites import Site, find_sites
from apportion.models.surgery import view
from apportion.serving.runtime.rounding import Scale, Seen, choose_scale

Inputs = Mapping[str, Tensor]
_SAMPLED = 256  # tokens of each level whose inputs are kept
# What equalising the channels before a linear layer must leave of its error, by the kind of the
# site and whether it is the output. What heads mix is as large as their values, which are scaled
# for nothing; after a norm it takes a product; feed-forward neurons are too many for one.
_WORTH = {
    ("heads", False): 0.7,
    ("heads", True): 1.0,
    ("feedforward", False): 0.7,
    ("feedforward", True): 0.0,
}


@torch.no_grad()
def calibrate_scales(
    model: Elastic, batches: Iterable[Inputs], levels: Sequence[float], *, bits: int = 8
) -> dict[str, Scale]:
    """The scale of what each linear layer of the sites is given, over some texts and all levels."""
    # As in the graph: only token 0 is read of the last layer.
    whole = read_first_token(model.plain().eval())
    batches = [dict(batch) for batch in batches]
    if not batches:
        raise ValueError("static scales need texts to be taken from")
    sites = find_sites(model.model, block=1)
    seen = {path: _Watch(width) for site in sites for path, width in _watched(site)}
    each = -(-_SAMPLED // len(batches))
    for level in levels:
        at_level = view(whole, model.allocation(level)).eval()
        for batch in batches:
            with _watching(at_level, sites, batch["attention_mask"], seen, each):
                at_level(**batch)
    scales: dict[str, Scale] = {}
    for site in sites:
        for path, _ in _watched(site):
            paths = site.inputs if path == site.inputs[0] else (path,)
            weight = np.concatenate([_weight(model.model, one) for one in paths], axis=1)
            worth = _WORTH[site.kind, path == site.output]
            scales[path] = choose_scale(seen[path].found(), weight, bits, worth=worth)
    return scales


def _watched(site: Site) -> list[tuple[str, int]]:
    """The linear layers of a site whose inputs get a scale, and how many channels they have."""
    return [(site.inputs[0], site.hidden), (site.output, site.count * site.width)]


def _weight(model: nn.Module, path: str) -> NDArray[Any]:
    module: Any = model.get_submodule(path)
    weight: NDArray[Any] = module.weight.detach().float().numpy().T
    return weight


class _Watch:
    """What a linear layer is given: the range of each channel, and some tokens."""

    def __init__(self, width: int) -> None:
        self.low, self.high = torch.zeros(width), torch.zeros(width)
        self.kept: list[Tensor] = []

    def see(self, states: Tensor, tokens: int) -> None:
        """Widens the ranges by states [tokens, channels], and keeps some of them."""
        channels = slice(states.shape[1])  # a level has the first of them
        self.low[channels] = torch.minimum(self.low[channels], states.amin(0))
        self.high[channels] = torch.maximum(self.high[channels], states.amax(0))
        some = states[:: max(1, len(states) // tokens)][:tokens]
        self.kept.append(nn.functional.pad(some, (0, len(self.low) - states.shape[1])))

    def found(self) -> Seen:
        """All of it, as arrays; a layer that no level runs was given nothing but zeros."""
        sample = torch.cat(self.kept) if self.kept else torch.zeros(1, len(self.low))
        return Seen(self.low.numpy(), self.high.numpy(), sample.numpy())


@contextmanager
def _watching(
    model: nn.Module,
    sites: Sequence[Site],
    mask: Tensor,
    seen: Mapping[str, _Watch],
    tokens: int,
) -> Iterator[None]:
    """Tells the watches what their layers are given in a call; padding does not count."""

    def telling(watch: _Watch) -> Any:
        def tell(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            states, own = args[0], own_tokens()
            real = mask.bool() if own is None else own
            states = states[real] if states.shape[:2] == real.shape else states.flatten(0, 1)
            if states.numel():
                watch.see(states.float(), tokens)

        return tell

    hooks = []
    for site in sites:
        # Keys are of all tokens also where the last layer is asked for token 0 alone.
        for path, told in ((site.inputs[:2][-1], site.inputs[0]), (site.output, site.output)):
            try:
                module = model.get_submodule(path)
            except AttributeError:
                continue  # of a layer that keeps nothing at this level
            hooks.append(module.register_forward_pre_hook(telling(seen[told])))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
