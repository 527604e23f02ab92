"""Questions: what is asked of every text of a batch job, and what answers it on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from apportion.data.rows import BadRow, Row
from apportion.files import sha256
from apportion.serving.batch.answering import Answer, answers_to
from apportion.serving.batch.routing import Router, read_routing
from apportion.serving.guarantees.cascade import Cascade
from apportion.serving.guarantees.certificate import Certificate
from apportion.serving.runtime.exported import is_export
from apportion.serving.runtime.session import Runtime

Answerer = Callable[
    [Sequence[Row]], Iterable[Answer | BadRow]
]  # in order; a row's label is its tag


@dataclass(frozen=True)
class Question:
    """What is asked of every text: all that decides an answer, but for the text."""

    folder: str
    budget: float | None = None
    certificate: str | None = None
    routing: str | None = None
    batch: int = 64  # rows in a call of the model

    def runtime(self) -> Runtime:
        """The model, on one thread; a checkpoint answers at the very budget that is asked for."""
        if self.budget is None or is_export(Path(self.folder)):
            return Runtime(self.folder, threads=1)
        return Runtime(self.folder, threads=1, levels=[self.budget])

    @property
    def digests(self) -> dict[str, str]:
        """What is in the files that decide answers, but for the folder of the model."""
        named = [Path(path) for path in (self.certificate, self.routing) if path is not None]
        if self.routing is not None:
            routing = read_routing(Path(self.routing))
            for route in (*routing.tags.values(), routing.default):
                parts = (route.certificate, route.folder) if route else ()
                named += [routing.path.parent / path for path in parts if path is not None]
        return {str(path): _digest(path) for path in named}


def answerer(runtime: Runtime, question: Question) -> tuple[Answerer, tuple[str, ...]]:
    """What an actor answers rows with, and the classes of its answers."""
    if question.routing is not None:
        router = Router(read_routing(Path(question.routing)), runtime, batch=question.batch)
        return lambda rows: router.answer(rows, chunk=max(1, len(rows))), router.classes
    if question.certificate is not None:
        cascade = Cascade.certified(runtime, Certificate.load(question.certificate))
    else:
        cascade = Cascade.at(runtime, question.budget or runtime.levels[-1])

    def answer(rows: Sequence[Row]) -> list[Answer]:
        encoded = runtime.tokenizer.encode([row.text for row in rows])
        likely, levels = cascade.answer(encoded, batch=question.batch)
        return answers_to(rows, likely, levels, runtime.classes)

    return answer, runtime.classes


def _digest(path: Path) -> str:
    """The hash of a file, or of all files of a folder."""
    if path.is_file():
        return sha256(path)
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    lines = (f"{file.relative_to(path)} {sha256(file)}\n" for file in inside)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
