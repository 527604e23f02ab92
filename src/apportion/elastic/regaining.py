"""Regaining: the whole budget makes up for what smaller ones took from it, in closed form.

What small budgets learn changes weights that the whole one reads, too. Units that no smaller budget
pays for are free to put that right. Of a site's output projection they have the last columns,
W_own, and each site, after those below it, gets

    min Σ_tokens ‖ y - W h - b ‖² + λ ‖ W_own - W₀_own ‖²

with y of the model as it was given and h of the whole budget as it is now. Nothing else moves, so
no budget up to `above` answers otherwise.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from apportion.data.task import Split
from apportion.elastic.elastic import Elastic
from apportion.elastic.repairing import rows_with
from apportion.models.activations import Stream
from apportion.models.sites import find_sites

ABOVE = 0.75  # the largest budget below the whole that repair and search look at
_RIDGE = 1e-2  # λ, in shares of the mean square of the columns
_TOKENS = 20_000  # fitted to
_BATCH = 32


@torch.no_grad()
def regain(model: Elastic, split: Split, *, whole: nn.Module, above: float = ABOVE) -> Elastic:
    """A nested model whose whole budget is nearer to the `whole` model, as it was given.

    Uses the first texts of the split, not their labels. Budgets up to `above` answer as before;
    the given model is left alone.
    """
    if model.form != "nested":
        raise ValueError("only a nested model has units that no smaller budget pays for")
    device = next(whole.parameters()).device
    shared, regained = model.allocation(above), model.plain().to(device).eval()
    split = split.take(torch.arange(len(split))[: rows_with(split, _TOKENS)])
    batches = [
        {name: values.to(device) for name, values in inputs.items()}
        for inputs, _ in split.batches(_BATCH)
    ]
    wanted, now = Stream(whole.eval(), batches), Stream(regained, batches)
    for site in find_sites(regained, model.kinds, model.block):
        own = len(shared.indices(site.layer, site.kind)) * site.width
        for stream in (wanted, now):
            stream.enter(site.layer)
        output = cast(nn.Linear, regained.get_submodule(site.output))
        if own < output.in_features:
            looks = [
                (*now.look(site, number), wanted.look(site, number)[1])
                for number in range(len(batches))
            ]
            output.weight[:, own:] += _change(
                [(given[:, own:], right - returned) for given, returned, right in looks]
            ).to(output.weight)
    made = copy.deepcopy(model)
    for name, values in regained.named_parameters():
        made.model.get_parameter(name).copy_(values)
    return made


def _change(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """What brings columns [tokens, own] nearest to what is missing [tokens, outputs]."""
    gram = sum((columns.T @ columns).cpu().double() for columns, _ in parts)
    right = sum((columns.T @ missing).cpu().double() for columns, missing in parts)
    assert isinstance(gram, Tensor) and isinstance(right, Tensor)
    squares = gram.diagonal()
    squares += squares.mean() * _RIDGE or 1.0  # columns that are all zero stay
    solution: Tensor = torch.linalg.solve(gram, right)
    return solution.T
