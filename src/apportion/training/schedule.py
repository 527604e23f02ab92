"""The schedule: which rows, budget and learning rate a step gets.

All of it is a function of (seed, purpose, step), so nothing about the past has to be remembered
to go on from a step: a run that was killed ends with the weights of one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apportion.elastic.elastic import plain_of
from apportion.models.readout import readout_names
from apportion.training.recipes import Recipe

_ORDER, _BUDGET, _NOISE, _LENGTH = range(4)  # purposes of random numbers


_LOWEST = 0.15  # how often a step of one budget takes the lowest
_POOL = 32  # batches among which rows of like length are put together


@lru_cache(maxsize=2)  # every step of an epoch asks for it
def row_order(
    seed: int, epoch: int, rows: int, lengths: Tensor | None = None, batch_size: int = 1
) -> Tensor:
    """The order in which an epoch goes through the training rows.

    Rows of different lengths are sorted inside pools of some batches, so that a batch has little
    padding; which rows share a pool, and the order of the batches, stay random.
    """
    generator = np.random.default_rng([seed, _ORDER, epoch])
    order = torch.from_numpy(generator.permutation(rows))
    if lengths is None:
        return order
    order = torch.cat(
        [
            pool[lengths[pool].argsort(stable=True)]
            for pool in torch.split(order, _POOL * batch_size)
        ]
    )
    whole = rows // batch_size
    batches = order[: whole * batch_size].view(whole, batch_size)
    shuffled = batches[torch.from_numpy(generator.permutation(whole))].flatten()
    return torch.cat([shuffled, order[whole * batch_size :]])  # what fills no batch comes last


def draw_budgets(recipe: Recipe, seed: int, step: int) -> list[float]:
    """The budgets of a step: B ~ U[low, high], or the highest, the lowest and some between.

    A nested model takes several. With both ends in every step, the whole model and the smallest
    part of it never fall behind. Or it takes one: an end at times, else one that is as likely to
    lie between 1/8 and 1/4 as between 1/2 and 1. That is three updates in the time of one.
    """
    low, high = recipe.budgets
    generator = np.random.default_rng([seed, _BUDGET, step])
    if recipe.form != "nested":
        return [float(generator.uniform(low, high))]
    if recipe.one_budget:
        drawn = generator.uniform()
        if drawn < _LOWEST + recipe.whole:
            return [low if drawn < _LOWEST else high]
        return [float(np.exp(generator.uniform(np.log(low), np.log(high))))]
    return [high, low, *map(float, generator.uniform(low, high, recipe.samples))]


def draw_longer(seed: int, step: int) -> float:
    """How far a step reads on from its budget's schedule towards the whole text, from 0 to 1.

    Half of the steps read just what the schedule says: that is what will be served.
    """
    generator = np.random.default_rng([seed, _LENGTH, step])
    return max(0.0, float(generator.uniform(-1.0, 1.0)))


def drop_words(
    inputs: dict[str, Tensor], share: float, unknown: int, marks: Sequence[int] = ()
) -> dict[str, Tensor]:
    """The inputs with a share of their words made unknown, so that no single word decides.

    The marks around a text are no words: they stay.
    """
    ids = inputs["input_ids"]
    gone = (torch.rand(ids.shape, device=ids.device) < share) & inputs["attention_mask"].bool()
    for mark in marks:
        gone &= ids != mark
    return {**inputs, "input_ids": ids.masked_fill(gone, unknown)}


def noise_seed(seed: int, step: int, process: int) -> int:
    """The seed of a step's dropout."""
    return int(np.random.SeedSequence([seed, _NOISE, step, process]).generate_state(1)[0])


def learning_rate_share(recipe: Recipe, step: int, steps: int) -> float:
    """The share of its learning rate that a step gets: linear warm-up, then linear decay to 0."""
    warm = max(1.0, recipe.warmup * steps)
    return min((step + 1) / warm, (steps - step) / max(1.0, steps - warm), 1.0)


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not; gates and readout have learning rates of their own."""
    gates: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    readout: list[nn.Parameter] = []
    reading = _readout_parameters(model) if recipe.readout_rate != 1.0 else set()
    for name, parameter in model.named_parameters():
        if recipe.form is not None and name.startswith("gates."):
            parameter.requires_grad_(recipe.gate_lr > 0)
            gates.append(parameter)
        elif parameter in reading:
            readout.append(parameter)
        else:
            (matrices if parameter.dim() > 1 else vectors).append(parameter)
    groups = [
        {"params": matrices, "lr": recipe.lr, "weight_decay": recipe.weight_decay},
        {"params": vectors, "lr": recipe.lr, "weight_decay": 0.0},
        {"params": gates, "lr": recipe.gate_lr, "weight_decay": 0.0},
        {"params": readout, "lr": recipe.lr * recipe.readout_rate, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _readout_parameters(model: nn.Module) -> set[nn.Parameter]:
    plain = plain_of(model)
    return {
        parameter
        for name in readout_names(plain)
        for parameter in plain.get_submodule(name).parameters()
    }
