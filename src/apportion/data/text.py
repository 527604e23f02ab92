"""Text classification: rows of a folder or of the hub, drawn by seed, encoded as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from apportion.data.rows import Row, plain
from apportion.data.sources import Part, Source, read_source
from apportion.data.splitting import stratified
from apportion.data.task import SPLITS, Split, Task
from apportion.data.tokenizer import Tokenizer
from apportion.data.unlabelled import Unlabelled, choose, find_texts

# Numbers that came later: where they are not set, a task is what it was without them.
_LATER = ("unlabelled", "unlabelled_from", "unlabelled_digest", "tail", "validation_from")


@dataclass(frozen=True)
class Drawn:
    """The rows of a text task by split, before any of them is encoded."""

    digest: str  # of all rows that there are
    classes: tuple[str, ...]
    rows: dict[str, list[Row]]
    unlabelled: Unlabelled | None = None
    unlabelled_digest: str | None = None  # of all texts of their file


@dataclass(frozen=True)
class Text:
    """The numbers of one text task; the same numbers and data always give the same rows.

    Sizes that are not given: all of a file that is there; else a tenth of the training file for
    validation and test, and the rest for training. With a digest, only the data that has it is
    taken, from wherever it is read. Texts without labels are taken if their number is given: from
    the folder's unlabelled.csv ("file"), from training rows that were not drawn ("train"), or from
    a file by its path; by default from the first if it is there, else from the second.
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
    unlabelled: int | None = None  # at most
    unlabelled_from: str | None = None  # "file", "train" or a path
    unlabelled_digest: str | None = None  # of that file's texts
    validation_from: str | None = None  # "test": of its file, rows that are not measured on
    tail: int | None = None  # of `length`, tokens from a text's end; the others are its first
    folder: str | None = field(default=None, compare=False)  # where the data is, if elsewhere

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("vocabulary", 3), ("min_count", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("train", "validation", "test", "unlabelled"):
            size = getattr(self, name)
            if size is not None and size < 2:
                raise ValueError(f"{name} needs at least 2 rows, not {size}")
        if self.seed < 0:
            raise ValueError(f"the seed of the rows must be 0 or more, not {self.seed}")
        if self.unlabelled is None and (self.unlabelled_from or self.unlabelled_digest):
            raise ValueError("unlabelled_from needs unlabelled, the most rows to take from there")
        if self.validation_from not in (None, "test"):
            raise ValueError(f"validation_from is 'test' or not set, not {self.validation_from!r}")
        if self.tail is not None and not 1 <= self.tail < self.length:
            raise ValueError(
                f"tail must be 1 to {self.length - 1} of {self.length} tokens, not {self.tail}"
            )
        if not self.text:
            raise ValueError("text needs the name of at least one column")

    def build(self, words: Tokenizer | None = None) -> Task:
        """The task with its rows read, drawn and encoded: by these words, or by their own.

        The last one is remembered, as long as its rows are the same: the stages of a run ask for
        it one after the other.
        """
        if self.tail is not None:
            if words is None:
                raise ValueError("tail needs the tokenizer of a pretrained model")
            words = words.with_tail(self.tail)
        drawn = draw(self, read_source(self.folder or self.data, self.text, self.label))
        free = drawn.unlabelled
        same = (
            repr((self._numbers(), drawn.digest, free and free.facts)),
            free and free.texts,
            words and (words.to_json(), repr(words.settings)),
        )
        if same not in _built:
            _built.clear()
            _built[same] = self._encode(drawn, words)
        return _built[same]

    def _encode(self, drawn: Drawn, words: Tokenizer | None) -> Task:
        if words is None:
            texts = [row.text for row in drawn.rows["train"]]
            words = Tokenizer.learn(
                texts, self.length, size=self.vocabulary, min_count=self.min_count
            )
        classes = drawn.classes
        splits = {
            name: encode_rows(rows, classes, words=words, length=self.length)
            for name, rows in drawn.rows.items()
        }
        facts = facts_of(splits, classes, words)
        unlabelled = None
        if drawn.unlabelled:
            free = drawn.unlabelled.texts
            inputs = words.pad(words.encode(free), self.length)
            unlabelled = Split(inputs, torch.full((len(free),), -1), free)
            facts["unlabelled"] = dict(drawn.unlabelled.facts)
        spec = {"kind": "text", **self._numbers(), "digest": drawn.digest}
        if drawn.unlabelled_digest:
            spec["unlabelled_digest"] = drawn.unlabelled_digest
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
            facts=facts,
            unlabelled=unlabelled,
        )

    def identity(self) -> dict[str, Any]:
        """What decides its rows: a digest, where there is one, says more than a name."""
        parts = {"kind": "text", **self._numbers(), "text": list(self.text)}
        if self.digest:
            del parts["data"]
        if self.unlabelled_digest:
            parts.pop("unlabelled_from", None)
        return parts

    def _numbers(self) -> dict[str, Any]:
        """Its fields, but for the folder: that is of this machine, this time."""
        fields = asdict(self)
        del fields["folder"]
        return {k: v for k, v in fields.items() if v is not None or k not in _LATER}

    def describe(self) -> str:
        """The task in a few words."""
        sizes = (
            "all" if size is None else f"{size:,}"
            for size in (self.train, self.validation, self.test)
        )
        more = f", and at most {self.unlabelled:,} without labels" if self.unlabelled else ""
        ends = f", the last {self.tail} of them from its end" if self.tail else ""
        return (
            f"Texts of {self.data}, up to {self.length} words of each{ends}; "
            f"{' / '.join(sizes)} training, validation and test rows{more}"
        )


_built: dict[Any, Task] = {}  # the last task, by all that decides it


def encode_rows(
    rows: Sequence[Row], classes: Sequence[str], *, words: Tokenizer, length: int
) -> Split:
    """The split of some rows: their tokens, padded to a length, and their classes as numbers."""
    number = {name: n for n, name in enumerate(classes)}
    texts = tuple(row.text for row in rows)
    labels = torch.tensor([number[row.label] for row in rows])
    return Split(words.pad(words.encode(texts), length), labels, texts)


def draw(spec: Text, source: Source) -> Drawn:
    """The rows of a text task by split; complains of rows that could not be trained on."""
    digest = source.digest()
    if spec.digest and digest != spec.digest:
        raise ValueError(
            f"the rows in {spec.folder or spec.data} are not those that were asked for: "
            f"their digest is {digest}, not {spec.digest}"
        )
    rows, undrawn = _draw(spec, source)
    drawn = Drawn(digest, classes_of(source), rows)
    if spec.unlabelled is None:
        return drawn
    found = find_texts(
        spec.folder or spec.data,
        spec.unlabelled_from,
        text=spec.text,
        label=spec.label,
        undrawn=undrawn,
    )
    texts_digest = found.digest() if found.of_a_file else None
    if spec.unlabelled_digest not in (None, texts_digest):
        raise ValueError(
            f"the texts of {found.source} are not those that were asked for: their digest is "
            f"{texts_digest}, not {spec.unlabelled_digest}"
        )
    # Of a test file all rows, drawn or not: more of them may be measured on later.
    held_out = [row for part in (source.validation, source.test) if part for row in part.rows]
    held_out += rows["validation"] + rows["test"]
    unlabelled = choose(
        found,
        spec.unlabelled,
        seed=spec.seed,
        held_out=[row.text for row in held_out],
        trained=[row.text for row in rows["train"]],
    )
    return replace(drawn, unlabelled=unlabelled, unlabelled_digest=texts_digest)


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


def _draw(spec: Text, source: Source) -> tuple[dict[str, list[Row]], Part]:
    """The rows of each split, and the training rows that are in none.

    Classes are in the proportions of their file, rows are chosen by the seed.

    Validation and test come out of the training file where they have no file of their own, and
    none of their rows is left in it; validation may come out of the test file as well. However few
    rows a class has, one is left to train on.
    """
    if spec.validation_from and (source.validation or not source.test):
        raise ValueError(
            f"{spec.data}: validation_from = 'test' is for test rows without validation rows"
        )
    generator = np.random.default_rng(spec.seed)
    left, parts, drawn = source.train, {"test": source.test, "validation": source.validation}, {}
    for name in parts:
        size, part = getattr(spec, name), parts[name]
        if part is None:
            size = size or max(2, len(source.train.rows) // 10)
            drawn[name], rest = stratified(left, size, name, generator, left_over=1)
            left = Part(left.where, tuple(rest))
        else:
            drawn[name], rest = stratified(part, size or len(part.rows), name, generator)
            if name == "test" and spec.validation_from:
                parts["validation"] = Part(part.where, tuple(rest))
    size = spec.train or len(left.rows)
    drawn["train"], undrawn = stratified(left, size, "train", generator, least=1)
    unseen = {row.label for row in source.train.rows} - {row.label for row in drawn["train"]}
    if unseen:
        raise ValueError(
            f"{source.train.where.split(',')[0]}: class {min(unseen)!r} has too few rows "
            f"to be among the {len(drawn['train']):,} that are trained on"
        )
    return {name: drawn[name] for name in SPLITS}, Part(left.where, tuple(undrawn))


def facts_of(splits: dict[str, Split], classes: Sequence[str], words: Tokenizer) -> dict[str, Any]:
    """What people should know of the data before they believe a number that came from it."""
    seen = {name: [plain(text) for text in split.texts or ()] for name, split in splits.items()}
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
