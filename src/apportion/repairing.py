"""Repairing: what stays makes up for what is switched off, at all budgets at once, in closed form.

A site's output is y = W h + b, of which a budget keeps the first columns. From a few hundred rows
of text, each site gets the W and b whose prefixes come nearest to what the whole model computes:

    min Σ_B w_B Σ_tokens ‖ y - W_k(B) h_k(B) - b ‖² + λ ‖ W - W₀ ‖²

with y of the dense model and h of the budget's own model, whose sites below are repaired already.
w_B is one over the root of what the budget loses before: or the small budgets, which lose most,
would have it all their way. It is one set of weights for all budgets, so it costs nothing when it
runs; with λ it stays where it was in directions that the rows say nothing about.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from apportion.elastic import Elastic
from apportion.recalling import layer_names, recalling, run_up_to
from apportion.sites import Site, find_sites
from apportion.surgery import cut
from apportion.tasks import Split

REPAIRED_AT = tuple(step / 8 for step in range(1, 9))
REPAIR_ROWS = 256
_LEAST_LOST = 1e-3  # of the outputs' variance; the whole model loses nothing, and weighs as if
_RIDGE = 1e-3  # λ, as a share of the mean square of the columns of h
_BATCH = 32


@torch.no_grad()
def repair(
    model: Elastic,
    split: Split,
    budgets: Sequence[float] = REPAIRED_AT,
    floor: int = 0,
    rows: int = REPAIR_ROWS,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Elastic, dict[str, Any]]:
    """A nested model with repaired output projections, and what that took.

    Of training rows, of which no label is looked at. The given model is left alone. What each
    layer is given is kept in memory for all rows, once a budget and once for the dense model.
    """
    if model.gates.order is None:
        raise ValueError("only a nested model has one set of weights to repair; `elastic.nested()`")
    started = time.perf_counter()
    rows = min(rows, len(split))
    device = model.gates.a.device
    batches = [
        {name: values.to(device) for name, values in inputs.items()}
        for inputs, _ in Split(*split.batch(torch.arange(rows))).batches(_BATCH)
    ]
    dense = _Stream(model.plain(), batches)
    whole = model.plain().eval()
    # Views of the whole model's weights: what is repaired there is repaired in each of them.
    smaller = [
        _Stream(cut(whole, model.allocation(budget, floor), share=True), batches)
        for budget in budgets
    ]
    sites = find_sites(whole, model.kinds, block=1)
    for done, site in enumerate(sites):
        for stream in (dense, *smaller):
            stream.enter(site.layer)
        _repair_site(whole, site, dense, smaller)
        if progress:
            progress(done + 1, len(sites))
    repaired = copy.deepcopy(model)
    repaired.model.load_state_dict(whole.state_dict())
    seconds = round(time.perf_counter() - started, 1)
    return repaired, {"repair_rows": rows, "repair_seconds": seconds}


class _Stream:
    """A model on some batches, at the door of one of its layers."""

    def __init__(self, model: nn.Module, batches: Sequence[Mapping[str, Tensor]]) -> None:
        self.model, self.batches = model.eval(), batches
        self.names = layer_names(model)
        self.layer = 0
        self.given: list[Any] = [None] * len(batches)  # to its layer by the one below

    def enter(self, layer: int) -> None:
        """Goes on to the door of a layer."""
        while self.layer < layer:
            name = self.names[self.layer]
            given = [self._run(number, name)[1] for number in range(len(self.batches))]
            self.given, self.layer = given, self.layer + 1

    def columns(self, site: Site) -> int:
        """How many columns a site has left."""
        return cast(nn.Linear, self.model.get_submodule(site.output)).in_features

    def look(self, site: Site, number: int) -> tuple[Tensor, Tensor]:
        """What a site of its layer is given and returns for a batch, one row a real token."""
        given, returned = self._run(number, site.output)
        mask = self.batches[number].get("attention_mask")
        if mask is None:
            return given.flatten(0, -2).float(), returned.flatten(0, -2).float()
        return given[mask.bool()].float(), returned[mask.bool()].float()

    def _run(self, number: int, name: str) -> tuple[Any, Any]:
        """What a module of its layer is given and returns for a batch."""
        # All layers below return what the last of them did: no other is listened to.
        below = {earlier: self.given[number] for earlier in self.names[: self.layer]}
        with recalling(self.model, below):
            return run_up_to(self.model, name, self.batches[number])


def _repair_site(whole: nn.Module, site: Site, dense: _Stream, smaller: Sequence[_Stream]) -> None:
    """Solves a site's least squares, and writes the solution into the whole model."""
    output = cast(nn.Linear, whole.get_submodule(site.output))
    wanted = [dense.look(site, number)[1] for number in range(len(dense.batches))]
    spread = float(torch.cat(wanted).var(dim=0).mean())
    equations = _Equations(output.weight.detach().float(), output.bias.detach().float())
    for stream in smaller:
        equations.add(stream, site, wanted, spread)
    weight, bias = equations.solve()
    if not bool(torch.isfinite(weight).all() and torch.isfinite(bias).all()):
        raise ValueError(f"{site.output} can't be repaired: its outputs are not finite numbers")
    output.weight.copy_(weight)
    output.bias.copy_(bias)


class _Equations:
    """The normal equations of a site, summed over budgets: of what is missing from its output."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias
        columns = weight.shape[1]
        # The last row and column are those of the bias.
        self.gram = torch.zeros(columns + 1, columns + 1, dtype=torch.float64)
        self.right = torch.zeros(columns + 1, weight.shape[0], dtype=torch.float64)

    def add(self, stream: _Stream, site: Site, wanted: Sequence[Tensor], spread: float) -> None:
        """Adds those of a budget."""
        kept = stream.columns(site)
        gram, right = torch.zeros_like(self.gram), torch.zeros_like(self.right)
        lost, tokens = 0.0, 0
        for number, outputs in enumerate(wanted):
            # A site that keeps nothing need not be called; its bias stays.
            given = stream.look(site, number)[0] if kept else outputs[:, :0]
            missing = outputs - given @ self.weight[:, :kept].T
            lost += float((missing - self.bias).square().mean(dim=1).sum())
            tokens += len(given)
            gram[:kept, :kept] += (given.T @ given).cpu()
            gram[:kept, -1] += given.sum(dim=0).cpu()
            right[:kept] += (given.T @ missing).cpu()
            right[-1] += missing.sum(dim=0).cpu()
        gram[-1, :kept] = gram[:kept, -1]
        gram[-1, -1] = tokens
        share = lost / tokens / spread if spread else 1.0
        weight = max(share, _LEAST_LOST) ** -0.5
        self.gram += weight * gram
        self.right += weight * right

    def solve(self) -> tuple[Tensor, Tensor]:
        """The weight and the bias."""
        gram = self.gram.clone()
        squares = gram.diagonal()[:-1]
        squares += squares.mean() * _RIDGE or 1.0  # what no budget keeps has no squares: it stays
        solved = torch.linalg.solve(gram, self.right).to(self.weight)
        return self.weight + solved[:-1].T, solved[-1]
