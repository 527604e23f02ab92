"""Records of one's own run: what its file, its dense model and others say of the test texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from apportion.study.peer_records import ComparedRecord


@dataclass(frozen=True, kw_only=True)
class RunAnswersRecord(ComparedRecord):
    """What one way of answering says of the test texts, beside the dense model."""

    kind: ClassVar[str] = "run_answers"
    arm: Annotated[str, "way to answer: `file-int8`, `torch`, `onnxruntime-int8` or `tfidf`"]
    level: Annotated[float, "level of the arm; 1 where it knows no budget"]
    runtime: Annotated[str, "what ran it, with version and settings"]
    rows: Annotated[int, "test texts"]
    accuracy: Annotated[float, "share of the texts that are classified right"]
    agreement: Annotated[float, "share of the texts that get the dense model's label"]
    gained: Annotated[int, "texts that it has right and the dense model wrong"]
    lost: Annotated[int, "texts that it has wrong and the dense model right"]


@dataclass(frozen=True, kw_only=True)
class ChangedTextRecord(ComparedRecord):
    """A test text whose label changes between levels."""

    kind: ClassVar[str] = "changed_text"
    text: Annotated[str, "the text"]
    label: Annotated[str, "its class"]
    answers: Annotated[dict[str, Any], "label and probability by level"]
