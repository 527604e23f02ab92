"""The words of some texts that are read at each budget, as pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Run:
    """A stretch of a text whose tokens go equally far."""

    space: str  # before it, so that no space is marked
    text: str
    layers: int  # that read it
    kept: bool  # to the last layer


@dataclass(frozen=True)
class Reading:
    """What a budget reads of a text."""

    budget: str
    share: float  # of the pieces, up to the last layer
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class WordView:
    """One text as a method's model reads it at each budget, the largest first."""

    method: str
    layers: int
    readings: tuple[Reading, ...]


def word_views(records: Iterable[Mapping[str, Any]]) -> list[WordView]:
    """A view per method and text; of a method's models, of the one that was measured last."""
    words = [record for record in records if record["kind"] == "words"]
    newest = {record["method"]: (record["stage"], record["weights"]) for record in words}
    texts = {
        (record["method"], *record["pieces"]): record
        for record in words
        if newest[record["method"]] == (record["stage"], record["weights"])
    }
    return [
        WordView(
            one["method"],
            one["layers"],
            tuple(
                _reading(budget, one["pieces"], one["read"][budget], one["layers"])
                for budget in sorted(one["read"], key=float, reverse=True)
            ),
        )
        for one in texts.values()
    ]


def _reading(budget: str, pieces: Sequence[str], read: Sequence[int], layers: int) -> Reading:
    runs = []
    for count, group in groupby(zip(pieces, read, strict=True), key=lambda pair: pair[1]):
        text = "".join(piece for piece, _ in group)
        bare = text.lstrip()
        runs.append(Run(text[: len(text) - len(bare)], bare, count, count == layers))
    share = sum(count == layers for count in read) / max(1, len(read))
    return Reading(budget, share, tuple(runs))
