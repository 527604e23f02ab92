"""Tasks: train, validation, test and unlabelled rows with their labels and encoding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from apportion.data.tokenizer import Tokenizer

SPLITS = ("train", "validation", "test")


class Criterion(Protocol):
    """What a task minimises, and what it counts: all that training and measuring know of labels.

    A frozen dataclass will do. Its repr is part of the digest of its rows, so numbers that change
    what is learned belong into its fields. Logits are what the model returns, [rows, outputs].
    """

    def check(self, model: object) -> None:
        """Refuses a model whose outputs this criterion can't read."""

    def loss(self, logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
        """What training minimises: its mean over the rows, or their sum."""

    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        """How well each row is answered, 1 being best [rows]; its mean is a model's accuracy."""

    def divergence(self, student: Tensor, teacher: Tensor, *, T: float = 1.0) -> Tensor:
        """How far the student's answers are from the teacher's, 0 being equal, as a mean."""

    def agreement(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Which rows both answer alike [rows]."""

    def draw(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Labels that are as likely as the model says, but for some doubt [rows]."""


@dataclass(frozen=True)
class Classification:
    """One class per row: cross-entropy is minimised, right answers are counted."""

    def check(self, model: object) -> None:
        """Refuses regressions, and models of several labels per row.

        A softmax over one output is always 1, so such a model would agree with everything.
        """
        config = getattr(model, "config", None)
        outputs = getattr(config, "num_labels", getattr(config, "classes", None))
        kind = getattr(config, "problem_type", None)
        if outputs == 1 or kind in ("regression", "multi_label_classification"):
            raise ValueError(
                f"the model has {outputs} output{'s' * (outputs != 1)} and problem_type {kind!r}; "
                "a classification needs one output per class, two at least, and one label per row"
            )

    def loss(self, logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
        """The cross-entropy."""
        return F.cross_entropy(logits, labels, reduction=reduction)

    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Whether the largest logit is the label's."""
        return logits.argmax(dim=-1) == labels

    def divergence(self, student: Tensor, teacher: Tensor, *, T: float = 1.0) -> Tensor:
        """KL(softmax(teacher/T) ‖ softmax(student/T))."""
        return F.kl_div(
            F.log_softmax(student / T, dim=-1),
            F.log_softmax(teacher / T, dim=-1),
            reduction="batchmean",
            log_target=True,
        )

    def agreement(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Whether both name the same class."""
        return student.argmax(dim=-1) == teacher.argmax(dim=-1)

    def draw(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Classes drawn from softmax(logits / 2): of a model that is sure, too, some are others."""
        likely = F.softmax(logits.float() / 2.0, dim=-1)
        return torch.multinomial(likely, 1, generator=generator)[:, 0]


CLASSIFICATION = Classification()


@dataclass(frozen=True)
class Split:
    """Rows of a task: the model's inputs by name, the labels, and the texts where there are any.

    Rows with an attention mask are stored padded to one length; a batch of them is only as wide
    as its longest row. Padding on the left is kept.
    """

    inputs: Mapping[str, Tensor]  # each [rows, …]
    labels: Tensor  # [rows], or as the criterion reads them
    texts: tuple[str, ...] | None = None
    criterion: Criterion = CLASSIFICATION

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
        return replace(self, inputs=inputs, labels=self.labels[rows], texts=texts)

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
        """A short hash of every input and label: what a record names as its data.

        A criterion other than classification counts as well.
        """
        sha = hashlib.sha256()
        for name in sorted(self.inputs):
            sha.update(name.encode())
            sha.update(self.inputs[name].contiguous().numpy().tobytes())
        sha.update(self.labels.contiguous().numpy().tobytes())
        if self.criterion != CLASSIFICATION:
            sha.update(repr(self.criterion).encode())
        return sha.hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """A problem with its three splits; `spec` is what rebuilds it.

    Where there are `unlabelled` rows, all their labels are -1: nothing but a teacher can be asked
    what they are.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    vocabulary: int
    length: int
    spec: Mapping[str, Any]
    words: Tokenizer | None = None  # of a task of texts
    facts: Mapping[str, Any] = field(default_factory=dict)  # what was seen while reading it
    unlabelled: Split | None = None  # in no other split

    def split(self, name: str) -> Split:
        """One of the splits by its name."""
        if name not in SPLITS:
            raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {name!r}")
        split: Split = getattr(self, name)
        return split

    def digest(self) -> str:
        """A short hash of all three splits, and of the unlabelled rows where there are any."""
        splits = [self.split(name) for name in SPLITS]
        if self.unlabelled is not None:
            splits.append(self.unlabelled)
        return hashlib.sha256("".join(s.digest() for s in splits).encode()).hexdigest()[:16]


class TaskSpec(Protocol):
    """The numbers of a task: what an experiment file holds, before any row is read or drawn."""

    @property
    def length(self) -> int:
        """Tokens in a sequence."""

    @property
    def seed(self) -> int:
        """Of the rows that are drawn."""

    def build(self, words: Tokenizer | None = None) -> Task:
        """The task with its rows; texts are encoded by these words, or by their own."""

    def identity(self) -> dict[str, Any]:
        """What decides its rows, as plain JSON values: part of the key of a stage."""

    def describe(self) -> str:
        """The task in a few words."""
