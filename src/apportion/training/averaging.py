"""Averaging: the mean of the weights over the last steps, which is steadier than any of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """An exponential mean of a model's weights; with a decay of 0 it is the weights themselves."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.weights = copy_weights(model) if decay else {}

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Takes the mean on after a step; at first it follows the weights closely."""
        share = 1.0 - min(self.decay, (step + 1) / (step + 10))
        now = self.model.state_dict()
        for name, mean in self.weights.items():
            mean.lerp_(now[name], share) if mean.is_floating_point() else mean.copy_(now[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the mean of its weights for a while."""
        if not self.decay:
            yield
            return
        now = copy_weights(self.model)
        self.model.load_state_dict(self.weights)
        yield
        self.model.load_state_dict(now)

    def go_on_from(self, weights: Mapping[str, Tensor]) -> None:
        """Takes up a mean that was saved."""
        for name, mean in self.weights.items():
            mean.copy_(weights[name])


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights of a model as they are now."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
