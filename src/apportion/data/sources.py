"""Where texts come from: a folder of CSV files, or a dataset of the hub by its name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from apportion.data.rows import LONGEST, BadRow, Row, open_text, read_csv
from apportion.extras import install_command
from apportion.files import first_line

_HUB_NAME = re.compile(r"([\w.-]*\w/)?\w[\w.-]*(:[\w.-]+)?")
_PARTS = ("train", "val", "test")  # files of a folder, each .csv
CLASS_NAMES = "classes.txt"  # beside the official files: the name of class 1, 2, …


@dataclass(frozen=True)
class Part:
    """The rows of one file or one split of a hub's dataset, and how to name a place in it."""

    where: str  # "train.csv, line" or "ag_news train, row"
    rows: tuple[Row, ...]

    def at(self, row: Row) -> str:
        """Where a row stands, for people."""
        return f"{self.where} {row.line}"


@dataclass(frozen=True)
class Source:
    """All rows that there are; validation and test may be missing."""

    train: Part
    validation: Part | None
    test: Part | None

    def digest(self) -> str:
        """A short hash of every label and text: two sources with the same one are the same."""
        sha = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            for row in part.rows if part else ():
                sha.update(f"{row.label}\x1f{row.text}\x1e".encode())
            sha.update(b"\x1d")
        return sha.hexdigest()[:16]


def read_source(data: str, text: Sequence[str], label: str) -> Source:
    """The rows in a folder or, where there is no such folder, of a dataset on the hub.

    What was read last is remembered, and read again only if its files changed: a command asks for
    the same rows in each of its steps.
    """
    folder = Path(data).expanduser()
    if folder.is_dir():
        return _folder_once(folder, tuple(text), label, _state_of(folder))
    if folder.exists():
        raise ValueError(f"{data} is a file; give the folder that holds train.csv")
    if not _HUB_NAME.fullmatch(data):
        raise ValueError(f"there is no folder {data}")
    return _hub_once(data, tuple(text), label)


@lru_cache(maxsize=1)
def _folder_once(folder: Path, text: tuple[str, ...], label: str, state: object) -> Source:
    return read_folder(folder, text, label)


@lru_cache(maxsize=1)
def _hub_once(name: str, text: tuple[str, ...], label: str) -> Source:
    return read_hub(name, text, label)


def _state_of(folder: Path) -> tuple[object, ...]:
    """Where the folder is, and what changes when one of the files of its rows does."""
    paths = [folder / name for name in (*(f"{part}.csv" for part in _PARTS), CLASS_NAMES)]
    states = [path.stat() if path.exists() else None for path in paths]
    return folder.absolute(), *(s and (s.st_mtime_ns, s.st_size, s.st_ino) for s in states)


def read_folder(folder: Path, text: Sequence[str], label: str) -> Source:
    """The rows of train.csv and, where they are there, of val.csv and test.csv."""
    if not (folder / "train.csv").exists():
        raise ValueError(f"{folder} has no train.csv")
    parts: dict[str, Part] = {}
    for name in _PARTS:
        path = folder / f"{name}.csv"
        if path.exists():
            with open_text(path) as stream:
                where = f"{path.name}, line"
                parts[name] = all_good(where, read_csv(stream, path.name, text, label))
    if (folder / CLASS_NAMES).exists():
        parts = _named(parts, folder / CLASS_NAMES)
    return Source(parts["train"], parts.get("val"), parts.get("test"))


def read_hub(name: str, text: Sequence[str], label: str) -> Source:
    """The rows of a dataset on the hub: `owner/name`, or `owner/name:configuration`."""
    loaded = _load_from_hub(name)
    if "train" not in loaded:
        raise ValueError(f"dataset {name!r} has no split 'train'; it has {', '.join(loaded)}")
    parts = {}
    for split in ("train", "validation", "test"):
        rows = loaded.get(split)
        # Where labels are a secret of a competition, all of them are -1.
        if rows is None or (label in rows.column_names and set(rows[label]) == {-1}):
            continue
        missing = sorted({*text, label} - set(rows.column_names))
        if missing:
            raise ValueError(
                f"dataset {name!r} has no column {missing[0]!r}; "
                f"its columns are {', '.join(map(repr, rows.column_names))}"
            )
        names = getattr(rows.features[label], "names", None)
        fields = rows.to_iterable_dataset()
        parts[split] = all_good(f"{name} {split}, row", _rows_of(fields, names, text, label))
    if "train" not in parts:
        raise ValueError(f"dataset {name!r} keeps the labels of its training rows secret")
    return Source(parts["train"], parts.get("validation"), parts.get("test"))


def _load_from_hub(name: str) -> Any:
    try:
        import datasets  # not needed to read a folder, and slow to import
        from huggingface_hub import HfApi, constants
    except ImportError:
        raise ValueError(
            f"there is no folder {name!r}; to read a dataset of the hub by that name, "
            + install_command("hub")
        ) from None
    path, _, configuration = name.partition(":")
    try:
        if not (constants.HF_HUB_OFFLINE or Path(path).exists()):
            HfApi().dataset_info(path, timeout=10)  # one question, where loading would ask for long
        return datasets.load_dataset(path, configuration or None)
    except Exception as error:  # whatever the network, the hub or a damaged cache may raise
        raise ValueError(
            f"there is no folder {name!r}, and no dataset of that name could be had from the hub "
            f"({first_line(error)}); without a network give a folder with train.csv, or set "
            "HF_HUB_OFFLINE=1 if it is in your cache"
        ) from None


def _rows_of(
    rows: Iterable[Any], names: Sequence[str] | None, text: Sequence[str], label: str
) -> Iterable[Row | BadRow]:
    for number, fields in enumerate(rows, start=1):
        whole = " ".join(str(fields[column] or "").strip() for column in text).strip()
        says = fields[label]
        if not whole:
            yield BadRow(number, "the text is empty")
        elif len(whole) > LONGEST:
            yield BadRow(number, f"a text of {len(whole):,} characters; the most is {LONGEST:,}")
        elif says is None or says == -1:
            yield BadRow(number, "there is no label")
        else:
            yield Row(number, whole, names[says] if names else str(says))


def all_good(where: str, rows: Iterable[Row | BadRow]) -> Part:
    """The rows, if all of them could be read; or the first problem, and how many rows have one."""
    good: list[Row] = []
    bad: list[BadRow] = []
    for row in rows:
        if isinstance(row, BadRow):
            bad.append(row)
        else:
            good.append(row)
    if bad:
        more = f" ({len(bad) - 1:,} more rows can't be read)" if len(bad) > 1 else ""
        raise ValueError(f"{where} {bad[0].line}: {bad[0].problem}{more}")
    if not good:
        raise ValueError(f"{where.rpartition(',')[0]} has no rows")
    return Part(where, tuple(good))


def _named(parts: dict[str, Part], path: Path) -> dict[str, Part]:
    """The rows with the names of their classes in place of numbers from 1, or from 0."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: not UTF-8; save the file in that encoding") from None
    names = [line.strip() for line in lines if line.strip()]
    labels = {row.label for part in parts.values() for row in part.rows}
    if not all(label.isdecimal() for label in labels):
        return parts  # they are names already
    numbers = sorted(map(int, labels))
    first = 0 if numbers[0] == 0 else 1
    if numbers[-1] - first >= len(names):
        last = max(labels, key=int)
        raise ValueError(f"{path.name} names {len(names)} classes, and there is a {last!r}")
    if first == 1 and numbers[-1] < len(names):
        raise ValueError(
            f"{path.name} names {len(names)} classes, and there are labels from {numbers[0]} to "
            f"{numbers[-1]}, which may be counted from 0 or from 1; use the names as labels"
        )

    def named(row: Row) -> Row:
        return Row(row.line, row.text, names[int(row.label) - first])

    return {name: Part(part.where, tuple(map(named, part.rows))) for name, part in parts.items()}
