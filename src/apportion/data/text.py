"""Text classification: rows of a folder or of the hub, drawn by seed, encoded as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from apportion.data.rows import Row
from apportion.data.sources import Part, Source, read_source
from apportion.data.task import Split, Task
from apportion.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Drawn:
    """The rows of a text task by split, before any of them is encoded."""

    digest: str  # of all rows that there are
    classes: tuple[str, ...]
    rows: dict[str, list[Row]]


@dataclass(frozen=True)
class Text:
    """The numbers of one text task; the same numbers and data always give the same rows.

    Sizes that are not given: all of a file that is there; else a tenth of the training file for
    validation and test, and the rest for training. With a digest, only the data that has it is
    taken, from wherever it is read.
    """

    data: str  # a folder, or a name on the hub
    digest: str | None = None
    length: int = 128
    train: int | None = None
    validation: int | None = None
    test: int | None = None
    text: tuple[str, ...] = ("text",)  # columns, joined
    label: str = "label"
    vocabulary: int = 30_000
    min_count: int = 2
    seed: int = 1
    folder: str | None = field(default=None, compare=False)  # where the data is, if elsewhere

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("vocabulary", 3), ("min_count", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("train", "validation", "test"):
            size = getattr(self, name)
            if size is not None and size < 2:
                raise ValueError(f"{name} needs at least 2 rows, not {size}")
        if self.seed < 0:
            raise ValueError(f"the seed of the rows must be 0 or more, not {self.seed}")
        if not self.text:
            raise ValueError("text needs the name of at least one column")

    def build(self, words: Tokenizer | None = None) -> Task:
        """The task with its rows read, drawn and encoded: by these words, or by their own."""
        drawn = draw(self, read_source(self.folder or self.data, self.text, self.label))
        classes = drawn.classes
        texts = {name: tuple(row.text for row in rows) for name, rows in drawn.rows.items()}
        if words is None:
            words = Tokenizer.learn(
                texts["train"], self.length, size=self.vocabulary, min_count=self.min_count
            )
        number = {name: n for n, name in enumerate(classes)}
        splits = {}
        for name, rows in drawn.rows.items():
            labels = torch.tensor([number[row.label] for row in rows])
            encoded = words.encode(texts[name])
            splits[name] = Split(words.pad(encoded, self.length), labels, texts[name])
        spec = {"kind": "text", **asdict(self), "digest": drawn.digest}
        del spec["folder"]  # of this machine, this time
        return Task(
            name="text",
            train=splits["train"],
            validation=splits["validation"],
            test=splits["test"],
            classes=classes,
            vocabulary=len(words),
            length=self.length,
            spec={name: list(v) if isinstance(v, tuple) else v for name, v in spec.items()},
            words=words,
            facts=_facts(splits, classes, words),
        )

    def identity(self) -> dict[str, Any]:
        """What decides its rows: a digest, where there is one, says more than a name."""
        parts = {"kind": "text", **asdict(self), "text": list(self.text)}
        del parts["folder"]
        if self.digest:
            del parts["data"]
        return parts

    def describe(self) -> str:
        """The task in a few words."""
        sizes = (
            "all" if size is None else f"{size:,}"
            for size in (self.train, self.validation, self.test)
        )
        return (
            f"Texts of {self.data}, up to {self.length} words of each; "
            f"{' / '.join(sizes)} training, validation and test rows"
        )


def draw(spec: Text, source: Source) -> Drawn:
    """The rows of a text task by split; complains of rows that could not be trained on."""
    digest = source.digest()
    if spec.digest and digest != spec.digest:
        raise ValueError(
            f"the rows in {spec.folder or spec.data} are not those that were asked for: "
            f"their digest is {digest}, not {spec.digest}"
        )
    return Drawn(digest, classes_of(source), _draw(spec, source))


def classes_of(source: Source) -> tuple[str, ...]:
    """The classes of the training rows; complains of a label elsewhere that is none of them."""
    classes = sorted({row.label for row in source.train.rows})
    if len(classes) < 2:
        first = source.train.rows[0]
        raise ValueError(
            f"{source.train.at(first)}: every row is of class {first.label!r}; "
            "there must be two classes or more"
        )
    for part in (source.validation, source.test):
        for row in part.rows if part else ():
            if row.label not in classes:
                raise ValueError(
                    f"{part and part.at(row)}: no training row is of class {row.label!r}; "
                    f"the classes are {', '.join(map(repr, classes))}"
                )
    return tuple(classes)


def _draw(spec: Text, source: Source) -> dict[str, list[Row]]:
    """The rows of each split: classes in the proportions of their file, chosen by the seed.

    Validation and test come out of the training file where they have no file of their own, and
    none of their rows is left in it.
    """
    generator = np.random.default_rng(spec.seed)
    left = source.train
    drawn = {}
    for name, part in (("test", source.test), ("validation", source.validation)):
        size = getattr(spec, name)
        if part is None:
            size = size or max(2, len(source.train.rows) // 10)
            drawn[name], rest = _stratified(left, size, name, generator)
            left = Part(left.where, tuple(rest))
        else:
            drawn[name], _ = _stratified(part, size or len(part.rows), name, generator)
    drawn["train"], _ = _stratified(left, spec.train or len(left.rows), "train", generator)
    unseen = {row.label for row in source.train.rows} - {row.label for row in drawn["train"]}
    if unseen:
        raise ValueError(
            f"{source.train.where.split(',')[0]}: class {min(unseen)!r} has too few rows "
            f"to be among the {len(drawn['train']):,} that are trained on"
        )
    return {name: drawn[name] for name in ("train", "validation", "test")}


def _stratified(
    part: Part, size: int, name: str, generator: np.random.Generator
) -> tuple[list[Row], list[Row]]:
    """So many rows, each class with its share (largest remainders first), and the rest of them."""
    if size > len(part.rows):
        raise ValueError(
            f"{part.where.split(',')[0]}: {size:,} {name} rows were asked for, "
            f"{len(part.rows):,} are there"
        )
    order = generator.permutation(len(part.rows))
    of_class: dict[str, list[int]] = {}
    for position in order:
        of_class.setdefault(part.rows[position].label, []).append(int(position))
    labels = sorted(of_class)
    exact = [size * len(of_class[label]) / len(part.rows) for label in labels]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(labels)), key=lambda n: (counts[n] - exact[n], n))
    for n in by_remainder[: size - sum(counts)]:
        counts[n] += 1
    chosen = {p for label, n in zip(labels, counts, strict=True) for p in of_class[label][:n]}
    taken = [part.rows[p] for p in order if p in chosen]
    rest = [row for p, row in enumerate(part.rows) if p not in chosen]
    return taken, rest


def _facts(splits: dict[str, Split], classes: Sequence[str], words: Tokenizer) -> dict[str, Any]:
    """What people should know of the data before they believe a number that came from it."""
    seen = {name: [_plain(text) for text in split.texts or ()] for name, split in splits.items()}
    trained = set(seen["train"])
    facts: dict[str, Any] = {"vocabulary": len(words), "splits": {}}
    for name, split in splits.items():
        ids, mask = split.inputs["input_ids"], split.inputs["attention_mask"]
        counts = Counter(split.labels.tolist())
        lengths = mask.sum(dim=1)
        facts["splits"][name] = {
            "rows": len(split),
            "classes": {label: counts[n] for n, label in enumerate(classes)},
            "tokens": round(float(lengths.float().mean()), 1),
            "full": round(float((lengths == words.length).float().mean()), 4),
            "unknown": round(float((ids[mask] == words.unknown).float().mean()), 4),
            # Of training rows those that stand there more than once, of others those in training.
            "duplicates": len(split) - len(trained)
            if name == "train"
            else sum(text in trained for text in seen[name]),
        }
    return facts


def _plain(text: str) -> str:
    """A text as it is compared with others: case and spaces do not count."""
    return " ".join(text.casefold().split())
