"""Arrays: models of torch as functions of arrays, which is what texts are predicted with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apportion.elastic.elastic import Elastic, logits_of
from apportion.serving.runtime.skipping import Skipping


def on_arrays(model: Callable[..., object]) -> Callable[..., NDArray[Any]]:
    """A function that takes and returns arrays, and computes what a model of torch does."""

    def answer(**inputs: NDArray[Any]) -> NDArray[Any]:
        # Torch shares an array's memory, and warns of one that can't be written.
        given = {
            name: np.require(values, requirements=["C", "W"]) for name, values in inputs.items()
        }
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(values) for name, values in given.items()}
            logits: NDArray[Any] = logits_of(model(**tensors)).float().numpy()
        return logits

    return answer


def model_at(model: Elastic, budget: float, *, soft: bool = False) -> Callable[..., NDArray[Any]]:
    """What answers at a budget: the units that it buys, or all of them with soft gates."""
    if soft:
        model.eval().opening(budget, "soft")  # complains now of a model that is not made for it
        return on_arrays(partial(model, budget=budget, form="soft"))
    return on_arrays(Skipping(model).at(budget))
