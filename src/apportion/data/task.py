"""Tasks: train, validation and test rows with their labels and encoding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from apportion.data.tokenizer import Words

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Rows of a task: the model's inputs by name, the labels, and the texts where there are any.

    Rows with an attention mask are stored padded to one length; a batch of them is only as wide
    as its longest row. Padding on the left is kept.
    """

    inputs: Mapping[str, Tensor]  # each [rows, …]
    labels: Tensor  # [rows]
    texts: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> Tensor | None:
        """Where the last real token of each row ends [rows], where rows are padded."""
        mask = self.inputs.get("attention_mask")
        if mask is None:
            return None
        real = mask.bool()
        empty = torch.nonzero(~real.any(dim=1))
        if len(empty):
            raise ValueError(
                f"row {int(empty[0])} has no real token: its attention mask is all false"
            )
        # In bytes: this is as large as the rows themselves.
        return real.shape[1] - real.flip(1).byte().argmax(dim=1)

    def take(self, rows: Tensor) -> Split:
        """The split of these rows alone, in this order."""
        texts = None if self.texts is None else tuple(self.texts[row] for row in rows.tolist())
        inputs = {name: values[rows] for name, values in self.inputs.items()}
        return Split(inputs, self.labels[rows], texts)

    def batch(self, rows: Tensor, padded: bool = False) -> tuple[dict[str, Tensor], Tensor]:
        """The inputs and labels of some rows; `padded` keeps the width that they are stored in."""
        inputs = {name: values[rows] for name, values in self.inputs.items()}
        if self.lengths is not None and not padded and len(rows):
            width = int(self.lengths[rows].max())
            inputs = {name: values[:, :width] for name, values in inputs.items()}
        return inputs, self.labels[rows]

    def batches(
        self, size: int, padded: bool = False
    ) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """All rows once, in batches; of padded rows, those of like length stand together."""
        order = torch.arange(len(self))
        if self.lengths is not None and not padded:
            order = self.lengths.argsort(stable=True)
        for rows in torch.split(order, size):
            yield self.batch(rows, padded)

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
    words: Words | None = None  # of a task of texts
    facts: Mapping[str, Any] = field(default_factory=dict)  # what was seen while reading it

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


class TaskSpec(Protocol):
    """The numbers of a task: what an experiment file holds, before any row is read or drawn."""

    @property
    def length(self) -> int:
        """Tokens in a sequence."""

    @property
    def seed(self) -> int:
        """Of the rows that are drawn."""

    def build(self, words: Words | None = None) -> Task:
        """The task with its rows; texts are encoded by these words, or by their own."""

    def identity(self) -> dict[str, Any]:
        """What decides its rows, as plain JSON values: part of the key of a stage."""

    def describe(self) -> str:
        """The task in a few words."""
