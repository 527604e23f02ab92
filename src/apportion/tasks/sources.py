"""Where texts come from: a folder of CSV files, or a dataset of the hub by its name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion.tasks.rows import BadRow, Row, open_text, read_csv

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
    """The rows in a folder or, where there is no such folder, of a dataset on the hub."""
    folder = Path(data).expanduser()
    if folder.is_dir():
        return read_folder(folder, text, label)
    if folder.exists():
        raise ValueError(f"{data} is a file; give the folder that holds train.csv")
    return read_hub(data, text, label)


def read_folder(folder: Path, text: Sequence[str], label: str) -> Source:
    """The rows of train.csv and, where they are there, of val.csv and test.csv."""
    if not (folder / "train.csv").exists():
        raise ValueError(f"{folder} has no train.csv")
    names = _class_names(folder / CLASS_NAMES)
    parts: dict[str, Part | None] = {}
    for name in ("train", "val", "test"):
        path = folder / f"{name}.csv"
        parts[name] = None
        if path.exists():
            with open_text(path) as stream:
                rows = _all_good(path.name, read_csv(stream, path.name, text, label))
            parts[name] = Part(f"{path.name}, line", tuple(_named(row, names) for row in rows))
    assert parts["train"] is not None
    return Source(parts["train"], parts["val"], parts["test"])


def read_hub(name: str, text: Sequence[str], label: str) -> Source:
    """The rows of a dataset on the hub: `owner/name`, or `owner/name:configuration`."""
    loaded = _load_from_hub(name)
    if "train" not in loaded:
        raise ValueError(f"dataset {name!r} has no split 'train'; it has {', '.join(loaded)}")
    parts = {}
    for split, rows in loaded.items():
        missing = sorted({*text, label} - set(rows.column_names))
        if missing:
            raise ValueError(
                f"dataset {name!r} has no column {missing[0]!r}; "
                f"its columns are {', '.join(map(repr, rows.column_names))}"
            )
        names = getattr(rows.features[label], "names", None)
        parts[split] = Part(
            f"{name} {split}, row",
            tuple(
                _all_good(
                    f"{name} {split}", _rows_of(rows.to_iterable_dataset(), names, text, label)
                )
            ),
        )
    return Source(parts["train"], parts.get("validation"), parts.get("test"))


def _load_from_hub(name: str) -> Any:
    try:
        import datasets  # not needed to read a folder, and slow to import
        from huggingface_hub import HfApi, constants
    except ImportError:
        raise ValueError(
            f"there is no folder {name!r}; to read a dataset of the hub by that name, "
            "pip install 'apportion[hub]'"
        ) from None
    path, _, configuration = name.partition(":")
    try:
        if not (constants.HF_HUB_OFFLINE or Path(path).exists()):
            HfApi().dataset_info(path, timeout=10)  # one question, where loading would ask for long
        return datasets.load_dataset(path, configuration or None)
    except Exception as error:  # whatever the network, the hub or a damaged cache may raise
        # Their messages are long, and the first line says what was wrong.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"there is no folder {name!r}, and no dataset of that name could be had from the hub "
            f"({reason}); without a network give a folder with train.csv, or set HF_HUB_OFFLINE=1 "
            "if it is in your cache"
        ) from None


def _rows_of(
    rows: Iterable[Any], names: Sequence[str] | None, text: Sequence[str], label: str
) -> Iterable[Row | BadRow]:
    for number, fields in enumerate(rows, start=1):
        whole = " ".join(str(fields[column] or "").strip() for column in text).strip()
        says = fields[label]
        if not whole:
            yield BadRow(number, "the text is empty")
        elif says is None or says == -1:  # how the hub marks rows whose label is kept secret
            yield BadRow(number, "there is no label")
        else:
            yield Row(number, whole, names[says] if names else str(says))


def _all_good(where: str, rows: Iterable[Row | BadRow]) -> list[Row]:
    """The rows, if all of them could be read; or the first problem, and how many rows have one."""
    good: list[Row] = []
    bad: list[BadRow] = []
    for row in rows:
        (bad if isinstance(row, BadRow) else good).append(row)  # type: ignore[arg-type]
    if bad:
        more = f" ({len(bad) - 1:,} more rows can't be read)" if len(bad) > 1 else ""
        raise ValueError(f"{where}, line {bad[0].line}: {bad[0].problem}{more}")
    if not good:
        raise ValueError(f"{where} has no rows")
    return good


def _class_names(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _named(row: Row, names: list[str]) -> Row:
    """The row with the name of its class, where a file of names says it."""
    if row.label.isdigit() and 1 <= int(row.label) <= len(names):
        return Row(row.line, row.text, names[int(row.label) - 1])
    return row
