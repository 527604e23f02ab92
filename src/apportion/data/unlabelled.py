"""Texts without labels: of a file, or training rows that were not drawn; none is in test."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apportion.data.rows import open_text, plain, read_csv, read_lines
from apportion.data.sources import Part, all_good

UNLABELLED = "unlabelled.csv"  # in the folder of the data
MOST = 8000  # rows that commands take
# Files whose lines are no texts.
_NO_LINES = (".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".gz", ".zip")
_PURPOSE = 1  # of the random numbers: the draw of the other splits must not change
_NO_LETTERS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Texts:
    """Texts without labels as they were found."""

    source: str  # for people: no path of this machine
    texts: tuple[str, ...]
    of_a_file: bool = True
    had_labels: bool = False  # which were not read

    def digest(self) -> str:
        """A short hash of every text."""
        return hashlib.sha256("\x1e".join(self.texts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Unlabelled:
    """The texts that a task takes, and what people should know of them."""

    texts: tuple[str, ...]
    facts: Mapping[str, Any]  # rows, source, in_test, doubles, had_labels


def find_texts(
    data: str, source: str | None, *, text: Sequence[str], label: str, undrawn: Part
) -> Texts:
    """The texts that a task names: "train", "file" (unlabelled.csv) or the path of a file.

    Where it names none: those of unlabelled.csv if the folder has it, else training rows that
    were not drawn. Labels are not looked at.
    """
    file = Path(data).expanduser() / UNLABELLED
    if source is None:
        source = "file" if file.exists() else "train"
    if source != "train":
        return read_texts(file if source == "file" else Path(source).expanduser(), text, label)
    where = undrawn.where.split(",")[0]
    if not undrawn.rows:
        raise ValueError(
            f"{where}: all rows are drawn, and none is left to be used without its label; draw "
            "fewer of them, or give a file of texts"
        )
    texts = tuple(row.text for row in undrawn.rows)
    return Texts(f"{where}, rows that were not drawn", texts, of_a_file=False)


def read_texts(path: Path, text: Sequence[str] = ("text",), label: str = "label") -> Texts:
    """The texts of a CSV file, or of a file with one text per line.

    Of a CSV file these columns are joined, or its column "text" is read if it has not all of them.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file of unlabelled texts, CSV or .txt")
    if not path.exists():
        raise ValueError(f"there is no file {path} of unlabelled texts")
    where = f"{path.name}, line"
    if path.suffix.lower() in _NO_LINES:
        raise ValueError(
            f"{path.name}: texts are read from a CSV file, or from one with a text in each line, "
            f"not from {path.suffix}"
        )
    if path.suffix.lower() != ".csv":
        with open_text(path) as stream:
            rows = all_good(where, read_lines(stream)).rows
        return Texts(path.name, tuple(row.text for row in rows))
    columns = _columns(path)
    if "text" in columns and not set(text) <= columns:
        text = ("text",)
    with open_text(path) as stream:
        rows = all_good(where, read_csv(stream, path.name, text, None)).rows
    had_labels = label in columns or any(row.label for row in rows)
    return Texts(path.name, tuple(row.text for row in rows), had_labels=had_labels)


def _columns(path: Path) -> set[str]:
    """The names in the first line; none if it can't be read, of which `read_csv` complains."""
    with open_text(path) as stream:
        try:
            return {name.strip() for name in next(csv.reader(stream), [])}
        except csv.Error:
            return set()


def choose(
    found: Texts, most: int, *, seed: int, held_out: Iterable[str], trained: Iterable[str]
) -> Unlabelled:
    """At most so many of the texts, chosen by the seed.

    Those that (nearly) stand in validation or test are left out, and so are doubles: of each
    other, or of training rows.
    """
    endings = {_ending(text) for text in held_out}
    seen = {plain(text) for text in trained}
    left: list[str] = []
    in_test = 0
    for text in found.texts:
        if _ending(text) in endings:
            in_test += 1
        elif (key := plain(text)) not in seen:
            seen.add(key)
            left.append(text)
    doubles = len(found.texts) - len(left) - in_test
    if not left:
        raise ValueError(
            f"{found.source}: no text is left to learn from without a label: {in_test:,} are in "
            f"validation or test, {doubles:,} in training or there twice"
        )
    order = np.random.default_rng([seed, _PURPOSE]).permutation(len(left))
    texts = tuple(left[place] for place in order[:most])
    facts = {"rows": len(texts), "source": found.source, "in_test": in_test, "doubles": doubles}
    return Unlabelled(texts, {**facts, "had_labels": found.had_labels})


def _ending(text: str) -> str:
    """The last 60 letters and digits: a text with another title or other quotes has the same."""
    return _NO_LETTERS.sub("", text[-240:].casefold())[-60:] or plain(text)
