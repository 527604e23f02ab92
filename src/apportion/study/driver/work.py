"""Work: the pieces that a run consists of, those that are done, and how long each takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from apportion.study.stages import Stage


class Piece(NamedTuple):
    """A stage's model, made and measured or, last and alone, timed."""

    stage: str  # its key
    timed: bool = False


@dataclass(frozen=True)
class Work:
    """The pieces that each table needs; those that are done; and the seconds that some took."""

    tables: Mapping[str, Collection[Piece]]
    done: Collection[Piece] = ()
    expected: Mapping[Piece, float] = field(default_factory=dict)
    jobs: int = 1  # pieces side by side, except those that are timed


def pieces_of(stages: Iterable[Stage]) -> set[Piece]:
    """All that a run does to some stages."""
    return {
        Piece(stage.key, timed)
        for stage in stages
        for timed in ((False, True) if stage.latency else (False,))
    }
