"""Tasks: train, validation and test rows with their labels and encoding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Rows of a task: the model's inputs by name, and the labels."""

    inputs: Mapping[str, Tensor]  # each [rows, …]
    labels: Tensor  # [rows]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The inputs and labels of some rows."""
        return {name: values[rows] for name, values in self.inputs.items()}, self.labels[rows]

    def batches(self, size: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """All rows in order, in batches."""
        for start in range(0, len(self), size):
            yield self.batch(torch.arange(start, min(start + size, len(self))))

    def digest(self) -> str:
        """A short hash of every input and label: what a record names as its data."""
        sha = hashlib.sha256()
        for name in sorted(self.inputs):
            sha.update(name.encode())
            sha.update(self.inputs[name].contiguous().numpy().tobytes())
        sha.update(self.labels.contiguous().numpy().tobytes())
        return sha.hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """A classification problem with its three splits; `spec` is what rebuilds it."""

    name: str
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    vocabulary: int
    length: int
    spec: Mapping[str, Any]

    def split(self, name: str) -> Split:
        """One of the splits by its name."""
        if name not in SPLITS:
            raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {name!r}")
        split: Split = getattr(self, name)
        return split

    def digest(self) -> str:
        """A short hash of all three splits."""
        return hashlib.sha256(
            "".join(self.split(name).digest() for name in SPLITS).encode()
        ).hexdigest()[:16]
