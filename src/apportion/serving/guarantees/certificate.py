"""Certificates: files that say how often a cascade's answers may differ from the whole model's.

A certificate is of one model as one runtime computes it, and says so by digests; on anything else
it is refused. Its own digest tells an edited or damaged file. It guards against accidents, not
against fraud: whoever edits the file can write a new digest, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from apportion.files import json_text, read_json, write_text

FORMAT, VERSION = "apportion-certificate", 1
IDENTITY = ("weights", "levels", "tokenizer", "runtime", "precision")


@dataclass(frozen=True)
class Tested:
    """Thresholds of the path and what calibration rows say of them."""

    thresholds: tuple[float | None, ...]
    disagreements: int  # on the calibration rows
    certified: bool
    cost: float  # mean share of the units' compute, of all levels that a text went through
    price: float  # mean time per text, the whole model's being 1, as costs let expect


@dataclass(frozen=True)
class Certificate:
    """At most `disagree_at_most` of the answers differ, with `confidence`, on texts like these."""

    disagree_at_most: float
    confidence: float
    rows: int  # calibration rows
    disagreements: int  # of them
    bound: (
        float  # exact upper bound for these thresholds taken alone; the promise is the first line
    )
    levels: tuple[float, ...]
    thresholds: tuple[float | None, ...]  # one per level below the whole model
    ends: tuple[float, ...]  # share of the calibration rows that end at each level
    cost: float
    speed: float  # rows per second over the whole model's, measured from text to label
    rows_per_second: float
    whole_rows_per_second: float
    batch: int
    threads: int
    seed: int  # of the split
    tuned_rows: int
    texts: str  # digest of the calibration texts
    identity: dict[str, str]
    by_class: dict[str, tuple[int, int]]  # disagreements and rows, reported and not promised
    by_length: dict[str, tuple[int, int]]
    path: tuple[Tested, ...] = field(repr=False, default=())

    @property
    def certified(self) -> bool:
        """Whether any text may end early."""
        return any(one is not None for one in self.thresholds)

    def check(self, identity: Mapping[str, str]) -> None:
        """Complains of another model than the one that was certified, and says what is other."""
        for name in IDENTITY:
            mine, theirs = self.identity.get(name), identity.get(name)
            if mine != theirs:
                raise ValueError(
                    f"the certificate has other {name} ({_short(mine)}) than this folder's "
                    f"({_short(theirs)}); certify this folder"
                )

    def to_dict(self) -> dict[str, Any]:
        """The certificate as its file has it, with its digest."""
        return sealed({"format": FORMAT, "version": VERSION, **asdict(self)})

    def save(self, path: str | Path) -> None:
        """Writes the certificate whole or not at all."""
        write_text(Path(path), json_text(self.to_dict(), str(path)))

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Reads a certificate; one that was edited or is damaged is refused."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"there is no certificate {path}; `apportion certify` writes one")
        refusal = "is not a certificate; `apportion certify` writes one"
        values = read_sealed(path, format=FORMAT, version=VERSION, refusal=refusal)
        names = {one.name for one in fields(cls)}
        if set(values) - {"format", "version"} != names:
            raise ValueError(f"{path} is not a certificate of this version; certify anew")
        return cls(**{name: _frozen(name, values[name]) for name in names})


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A table of JSON with its own digest, which guards against accidents."""
    return {**values, "digest": digest(values)}


def read_sealed(path: Path, *, format: str, version: int, refusal: str) -> dict[str, Any]:
    """What `sealed` made, with its digest checked; a file of another format is refused first."""
    values = read_json(path)
    if values.get("format") != format or values.get("version") != version:
        raise ValueError(f"{path} {refusal}")
    said = values.pop("digest", None)
    if said != digest(values):
        raise ValueError(f"{path} was edited or is damaged: its digest is another; certify anew")
    return values


def digest(values: Mapping[str, Any]) -> str:
    """The hash of a table of JSON, however it is laid out."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_texts(texts: Iterable[str]) -> str:
    """The hash of texts in their order."""
    sha = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        sha.update(len(data).to_bytes(8, "big") + data)
    return sha.hexdigest()


def _frozen(name: str, value: Any) -> Any:
    """A value of the file as the dataclass has it."""
    if name == "path":
        return tuple(Tested(**{**one, "thresholds": tuple(one["thresholds"])}) for one in value)
    if name in ("by_class", "by_length"):
        return {key: tuple(pair) for key, pair in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _short(value: str | None) -> str:
    """What a sentence shows of a digest, or all of a name."""
    if not value:
        return "none"
    return value[:12] + "…" if len(value) > 40 else value
