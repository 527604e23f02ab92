"""The state of a run that is training: one safetensors file with the notes in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from apportion.files import replacing, save_tensors


@dataclass(frozen=True)
class TrainingState:
    """All that a killed run needs to go on."""

    weights: Mapping[str, Tensor]
    best: dict[str, Tensor]
    moments: Mapping[int, Mapping[str, Tensor]]  # the optimizer's, by parameter number
    notes: dict[str, Any]


def save_state(path: Path, state: TrainingState) -> None:
    """Writes a training state in one file, whole or not at all."""
    tensors = {f"weights/{name}": value for name, value in state.weights.items()}
    tensors |= {f"best/{name}": value for name, value in state.best.items()}
    for number, values in state.moments.items():
        tensors |= {f"moments/{number}/{name}": value for name, value in values.items()}
    try:
        with replacing(path) as part:
            save_tensors(tensors, part, {"notes": json.dumps(state.notes)})
    except OSError as error:
        raise OSError(f"could not write {path}: {error.strerror or error}") from error


def load_state(path: Path) -> TrainingState:
    """Reads what `save_state` wrote."""
    weights: dict[str, Tensor] = {}
    best: dict[str, Tensor] = {}
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
                    (weights if where == "weights" else best)[name] = value
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a readable training state ({error}); remove it to start again"
        ) from None
    return TrainingState(weights, best, moments, notes)
