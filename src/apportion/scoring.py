"""Sources of scores other than learned gates, each a tensor [units] for `allocate`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from apportion.elastic import Elastic
from apportion.evaluation import evaluate
from apportion.tasks import Split, Task
from apportion.units import Allocation, Units


def loss_increase(model: Elastic, split: Split) -> Tensor:
    """How much the loss on a split rises when each unit alone is switched off.

    The paper's post-hoc baseline; the split is validation, never test.
    """
    everything = set(range(len(model.units)))
    whole = evaluate(model, split).loss
    rises = []
    for position in range(len(model.units)):
        rest = Allocation.of(model.units, everything - {position})
        rises.append(evaluate(model, split, allocation=rest, form="hard").loss - whole)
    return torch.tensor(rises)


def random(units: Units, seed: int) -> Tensor:
    """Scores that mean nothing: the floor that every method has to beat."""
    return torch.rand(len(units), generator=torch.Generator().manual_seed(seed))


# By name, as experiment files call them: from a model, its task and a seed.
SOURCES: dict[str, Callable[[Elastic, Task, int], Tensor]] = {
    "loss-increase": lambda model, task, seed: loss_increase(model, task.validation),
    "random": lambda model, task, seed: random(model.units, seed),
}
