"""The marked-token task: do the two values that follow the markers match?

A sequence is filler in which two markers stand at random places, each with a value after it.
Other values, the distractors, are strewn over the filler, so a model can't just look for a pair of
equal values: it has to see which token stands before each, and to compare two places that are any
distance apart.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from apportion.data.task import Split, Task
from apportion.data.tokenizer import Tokenizer

MARKER = 0  # token ids 1 … values are the values; the fillers come after them


@dataclass(frozen=True)
class Marked:
    """The numbers of one marked-token task; the same numbers always give the same rows."""

    length: int = 64
    values: int = 8
    fillers: int = 8
    distractors: int = 8
    train: int = 8192
    validation: int = 2048
    test: int = 2048
    seed: int = 1

    def __post_init__(self) -> None:
        if self.length < 4:
            raise ValueError(f"two markers with a value each need length 4, not {self.length}")
        if self.values < 2:
            raise ValueError(f"values can differ only if there are 2 or more, not {self.values}")
        if self.fillers < 1:
            raise ValueError(f"there must be at least 1 filler token, not {self.fillers}")
        if not 0 <= self.distractors <= self.length:
            raise ValueError(
                f"distractors must be between 0 and the length {self.length}, "
                f"not {self.distractors}"
            )
        if self.seed < 0:
            raise ValueError(f"the seed of the rows must be 0 or more, not {self.seed}")
        for name in ("train", "validation", "test"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} needs at least 2 rows, not {getattr(self, name)}")

    def build(self, words: Tokenizer | None = None) -> Task:
        """The task with its rows generated."""
        if words is not None:
            raise ValueError("the marked-token task draws its own tokens; it has no texts")
        generator = np.random.default_rng(self.seed)
        sizes = (self.train, self.validation, self.test)
        seen: set[bytes] = set()
        splits = [_draw_split(self, size, generator, seen) for size in sizes]
        return Task(
            name="marked",
            train=splits[0],
            validation=splits[1],
            test=splits[2],
            classes=("differ", "match"),
            vocabulary=1 + self.values + self.fillers,
            length=self.length,
            spec={"kind": "marked", **asdict(self)},
        )

    def identity(self) -> dict[str, Any]:
        """What decides its rows."""
        return asdict(self)

    def describe(self) -> str:
        """The task in a few words."""
        return (
            f"Sequences of {self.length} tokens, {self.train:,} training, "
            f"{self.validation:,} validation and {self.test:,} test rows"
        )


def _draw_split(spec: Marked, size: int, generator: np.random.Generator, seen: set[bytes]) -> Split:
    """Rows that no earlier split has, half of them of each label, in random order."""
    rows: list[np.ndarray] = []
    wanted = np.arange(size) % 2  # balanced to within one row
    generator.shuffle(wanted)
    barren = 0
    while len(rows) < size:
        before = len(rows)
        for row in _draw_rows(spec, wanted[before : before + 4096], generator):
            # The row's label is fixed by its place, so a repeat is redrawn with the same label.
            if (key := row.tobytes()) in seen:
                break
            seen.add(key)
            rows.append(row)
        barren = 0 if len(rows) > before else barren + 1
        if barren == 500:
            raise ValueError(
                f"length {spec.length} with {spec.values} values has too few different "
                f"sequences for {spec.train + spec.validation + spec.test} rows"
            )
    return Split(
        {"input_ids": torch.from_numpy(np.stack(rows).astype(np.int64))},
        torch.from_numpy(wanted.astype(np.int64)),
    )


def _draw_rows(spec: Marked, labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    count = len(labels)
    row = np.arange(count)
    shape = (count, spec.length)
    filler = generator.integers(0, spec.fillers, size=shape) + 1 + spec.values
    value = generator.integers(0, spec.values, size=shape) + 1
    # The places of the smallest of random numbers are a random choice of places.
    strewn = generator.random(shape).argsort(axis=1).argsort(axis=1) < spec.distractors
    tokens = np.where(strewn, value, filler).astype(np.int16)
    # Two places at least 2 apart, uniform over all such pairs: draw from a line shortened by the
    # gap, then stretch it. The last position holds no marker, since a value must follow.
    first = generator.integers(0, spec.length - 2, size=count)
    second = generator.integers(0, spec.length - 3, size=count)
    second = second + (second >= first)
    low, high = np.minimum(first, second), np.maximum(first, second) + 1
    tokens[row, low] = MARKER
    tokens[row, high] = MARKER
    # A shift by 1 … values-1 (mod values) is every other value with equal chance.
    shift = generator.integers(1, spec.values, size=count) * (labels == 0)
    tokens[row, low + 1] = value[row, low]
    tokens[row, high + 1] = (value[row, low] - 1 + shift) % spec.values + 1
    return tokens
