"""What a killed training needs to go on: one safetensors file with notes in its header.

The notes say which run it belongs to: only that one may go on from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from apportion.data.task import Task
from apportion.elastic.checkpoint import weights_digest
from apportion.elastic.elastic import Elastic, plain_of
from apportion.files import replacing
from apportion.tensor_files import save_tensors
from apportion.training.recipes import Recipe


@dataclass(frozen=True)
class TrainingState:
    """All that a killed run needs to go on."""

    weights: Mapping[str, Tensor]
    best: dict[str, Tensor]
    moments: Mapping[int, Mapping[str, Tensor]]  # the optimizer's, by parameter number
    notes: dict[str, Any]
    average: dict[str, Tensor] = field(default_factory=dict)  # of the weights, where it is kept


def save_state(path: Path, state: TrainingState) -> None:
    """Writes a training state in one file, whole or not at all."""
    tensors = {f"weights/{name}": value for name, value in state.weights.items()}
    tensors |= {f"best/{name}": value for name, value in state.best.items()}
    tensors |= {f"average/{name}": value for name, value in state.average.items()}
    for number, values in state.moments.items():
        tensors |= {f"moments/{number}/{name}": value for name, value in values.items()}
    try:
        with replacing(path) as part:
            save_tensors(tensors, part, {"notes": json.dumps(state.notes)})
    except OSError as error:
        raise OSError(f"could not write {path}: {error.strerror or error}") from error


def load_state(path: Path) -> TrainingState:
    """Reads what `save_state` wrote."""
    named: dict[str, dict[str, Tensor]] = {"weights": {}, "best": {}, "average": {}}
    moments: dict[int, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads(file.metadata()["notes"])
            for key in file.keys():  # noqa: SIM118 - not a dict
                where, _, name = key.partition("/")
                value = file.get_tensor(key)
                if where == "moments":
                    number, _, name = name.partition("/")
                    moments.setdefault(int(number), {})[name] = value
                else:
                    named[where][name] = value
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a readable training state ({error}); remove it to start again"
        ) from None
    return TrainingState(named["weights"], named["best"], moments, notes, named["average"])


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
