"""Which run a training state belongs to: only that one may go on from it."""

from __future__ import annotations

import hashlib
import json

from torch import nn

from apportion.data.task import Task
from apportion.elastic.checkpoint import weights_digest
from apportion.elastic.elastic import Elastic, plain_of
from apportion.training.recipes import Recipe


def run_identity(
    model: nn.Module, task: Task, recipe: Recipe, seed: int, teacher: nn.Module | None
) -> str:
    """A hash of all that decides how a run ends."""
    parts = {
        "model": _fingerprint(model),
        "teacher": None if teacher is None else _fingerprint(teacher),
        "data": task.digest(),
        "recipe": recipe.identity(),
        "seed": seed,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _fingerprint(model: nn.Module) -> list[str]:
    """A model's weights, and what decides what they compute."""
    gates = (model.gates.tau, model.units.to_dict()) if isinstance(model, Elastic) else None
    return [weights_digest(model), repr(getattr(plain_of(model), "config", None)), repr(gates)]
