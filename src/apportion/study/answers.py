"""Answers: what a stage's model says of each test row, kept in a file beside the records."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.data.task import CLASSIFICATION, Classification, Split
from apportion.files import first_line, write_bytes
from apportion.study.stages import Stage

BINS = 15  # of equal width, for the calibration error


@dataclass(frozen=True)
class Said:
    """What a model says of each row, in one form at one budget."""

    predicted: NDArray[np.integer]  # class [rows]
    loss: NDArray[np.float16]  # cross-entropy [rows]
    confidence: NDArray[np.float16]  # probability of the predicted class [rows]

    def agreement(self, other: Said) -> float:
        """The share of the rows that both give the same class."""
        return float((self.predicted == other.predicted).mean())


@dataclass(frozen=True)
class Answers:
    """What the model of a stage says of the test rows, by form and budget."""

    measures: str  # hash of what was measured, as in the `stage` record
    rows: str  # digest of the test rows: only answers to the same rows are compared
    labels: NDArray[np.integer]
    said: Mapping[tuple[str, float], Said]

    def right(self, form: str, budget: float) -> NDArray[np.bool_]:
        """Which rows are classified right."""
        return np.asarray(self.said[form, budget].predicted == self.labels)

    def calibration_error(self, form: str, budget: float) -> float:
        """How far confidence is from accuracy: mean over rows of the gap in each row's bin."""
        confidence = self.said[form, budget].confidence.astype(np.float64)
        gaps = self.right(form, budget) - confidence
        bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
        return float(np.abs(np.bincount(bins, weights=gaps, minlength=BINS)).sum() / len(gaps))

    def write(self, path: Path) -> None:
        """Writes them as one compressed file, whole or not at all."""
        forms, budgets = zip(*self.said, strict=True)
        predicted, loss, confidence = (  # each [points, rows]
            np.stack([getattr(said, name) for said in self.said.values()]) for name in _COLUMNS
        )
        data = io.BytesIO()
        np.savez_compressed(
            data,
            measures=np.array(self.measures),
            rows=np.array(self.rows),
            labels=self.labels,
            forms=np.array(forms),
            budgets=np.array(budgets),
            predicted=predicted,
            loss=loss,
            confidence=confidence,
        )
        write_bytes(path, data.getvalue())


_COLUMNS = ("predicted", "loss", "confidence")


def read_file(path: Path) -> Answers:
    """The answers in a file."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            columns = [arrays[name] for name in _COLUMNS]
            points = zip(arrays["forms"].tolist(), arrays["budgets"].tolist(), strict=True)
            labels = arrays["labels"]
            said = {point: Said(*values) for point, *values in zip(points, *columns, strict=True)}
            found = Answers(str(arrays["measures"]), str(arrays["rows"]), labels, said)
        if any(column.shape != (len(said), len(labels)) for column in columns):
            raise ValueError("its points have not one answer per row")
    except _UNREADABLE as error:
        raise ValueError(
            f"{path} is not readable as answers ({first_line(error)}); "
            "remove it, and the next run measures its stage again"
        ) from None
    return found


# What numpy lets through of damaged files, and of arrays that are no archive of several.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


def answers_file(stage: Stage, results: Path) -> Path:
    """Where the answers of a stage are: in a folder named as the file of its records."""
    return results.with_suffix("") / f"{stage.key}.npz"


def has_answers(stage: Stage, results: Path) -> bool:
    """Whether the answers of a stage are there, of what it is measured on now."""
    path = answers_file(stage, results)
    try:
        return path.exists() and read_file(path).measures == stage.measures
    except ValueError:
        return False


def read_answers(stages: Iterable[Stage], results: Path) -> dict[str, Answers]:
    """The answers of those stages that have some, by key."""
    files = [(stage, answers_file(stage, results)) for stage in stages if stage.answers]
    found = [(stage, read_file(file)) for stage, file in files if file.exists()]
    return {s.key: answers for s, answers in found if answers.measures == s.measures}


def check_same_rows(*digests: str) -> None:
    """Complains of answers that are to different rows."""
    if len(set(digests)) > 1:
        raise ValueError(
            "answers are compared row by row, and these are to different test rows: "
            f"digests {', '.join(sorted(set(digests)))}"
        )


def dense_of(stage: Stage) -> Stage | None:
    """The whole, plain model that a stage was made from or taught by; none, if it is one itself."""
    if _is_dense(stage):
        return None
    for source in stage.sources:
        found = source if _is_dense(source) else dense_of(source)
        if found is not None:
            return found
    return None


def _is_dense(stage: Stage) -> bool:
    return not stage.has_gates and stage.only is None


@dataclass(frozen=True)
class Noting(Classification):
    """Classification that notes what is said of each row: labels are [rows, (class, place)]."""

    count: int
    notes: list[Said] = field(default_factory=list, compare=False)  # one for each pass over rows
    _begun: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def loss(self, logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
        """The cross-entropy."""
        return super().loss(logits, labels[:, 0], reduction=reduction)

    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Whether the largest logit is the label's, after noting what is."""
        classes, places = labels.unbind(1)
        top = logits.softmax(dim=-1).max(dim=-1)
        batch = {
            "predicted": logits.argmax(dim=-1),
            "loss": super().loss(logits, classes, reduction="none"),
            "confidence": top.values,
            "seen": torch.ones_like(places),
        }
        for name, values in batch.items():
            column = self._begun.setdefault(name, torch.zeros(self.count, dtype=values.dtype))
            column[places.cpu()] = values.cpu()
        if self._begun["seen"].all():  # a pass is over
            self._end(logits.shape[-1])
        return super().score(logits, classes)

    def _end(self, classes: int) -> None:
        predicted, loss, confidence = (self._begun[name].numpy() for name in _COLUMNS)
        said = Said(
            predicted.astype(smallest_integer(classes)),
            loss.clip(max=np.finfo(np.float16).max).astype(np.float16),
            confidence.astype(np.float16),
        )
        self.notes.append(said)
        self._begun.clear()


def smallest_integer(classes: int) -> type[np.unsignedinteger]:
    """The type that so many classes fit into."""
    return np.uint8 if classes <= 256 else np.uint16


def noting(split: Split) -> tuple[Split, list[Said]]:
    """The same rows, and a list that gets what is said of them in each pass over all of them."""
    if split.criterion != CLASSIFICATION:
        raise ValueError(f"answers are kept of classes, not of {split.criterion!r}")
    criterion = Noting(len(split))
    labels = torch.stack([split.labels, torch.arange(len(split))], dim=1)
    return replace(split, labels=labels, criterion=criterion), criterion.notes


def rows_digest(split: Split) -> str:
    """A short hash of rows, by their texts where they have some: models encode them differently."""
    if split.texts is None:
        return split.digest()
    sha = hashlib.sha256()
    for text, label in zip(split.texts, split.labels.tolist(), strict=True):
        sha.update(f"{label}\t{len(text)}\t{text}\n".encode())
    return sha.hexdigest()[:16]
