"""Records of which words are read, where budgets drop tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from apportion.data.task import Task
from apportion.elastic.checkpoint import Checkpoint
from apportion.elastic.description import trace_pieces
from apportion.study.records import Record
from apportion.study.stages import Stage

_SHOWN = 3  # texts


@dataclass(frozen=True, kw_only=True)
class WordsRecord(Record):
    """Which words of a test text are read."""

    kind: ClassVar[str] = "words"
    weights: Annotated[str, "digest of the weights"]
    layers: Annotated[int, "of the model"]
    pieces: Annotated[list[str], "the text, a piece per token and for what is no token"]
    read: Annotated[dict[str, list[int]], "by budget, how many layers read each piece"]


def words_read(
    stage: Stage, checkpoint: Checkpoint, task: Task, *, weights: str
) -> list[WordsRecord]:
    """What a stage's model reads of the first test texts; nothing where it reads all tokens.

    A study that keeps its answers is there to be shown to others, and its texts may be somebody
    else's: those are not copied into its records.
    """
    model = checkpoint.elastic
    if stage.answers or model is None or model.frontier is None or task.words is None:
        return []
    found = []
    for text in [text for text in task.test.texts or () if text.strip()][:_SHOWN]:
        pieces, read = trace_pieces(checkpoint, text, budgets=model.within(stage.budgets))
        layers = model.units.layers
        found.append(
            WordsRecord(**stage.names, weights=weights, layers=layers, pieces=pieces, read=read)
        )
    return found
