"""Predicting: texts in, labels and probabilities out, a few at a time however many there are.

Models are functions of arrays here, so that an exported folder predicts without torch.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.rows import BadRow, Row
from apportion.data.tokenizer import Tokenizer

Answering = Callable[..., NDArray[Any]]  # ids and mask [rows, tokens] in, logits out
FORMATS = ("csv", "jsonl")
ENCODING = "one thread, a chunk ahead"  # records that say otherwise are measured again
CHUNK, _FIRST = 1024, 128  # rows that are taken at a time: at most, and the first time


@dataclass(frozen=True)
class Prediction:
    """The answer to the text on a line: the likeliest class, and the probability of each."""

    line: int
    label: str
    probabilities: tuple[float, ...]


def predict(
    model: Answering,
    words: Tokenizer,
    classes: Sequence[str],
    rows: Iterable[Row | BadRow],
    batch: int = 64,
    chunk: int = CHUNK,
) -> Iterator[Prediction | BadRow]:
    """A prediction for each row, in order; rows that could not be read pass through.

    Rows are taken a chunk at a time, and inside it those of like length go together, so memory
    does not grow with the input and little is spent on padding. While the model works on a chunk,
    a thread reads and encodes the next one. An answer that is not a number is an error.
    """
    if batch < 1 or chunk < 1:
        raise ValueError(f"batch and chunk must be at least 1, not {batch} and {chunk}")
    for group, encoded in encode_ahead(words, iter(rows), chunk):
        found = _answer(model, words, encoded, batch)
        lines = [row.line for row in group if isinstance(row, Row)]
        for line, likely in zip(lines, found, strict=True):
            if not math.isfinite(sum(likely)):
                raise ValueError(
                    f"the model's answer to line {line} is not a number: are its weights damaged?"
                )
        answers = iter(found)
        for row in group:
            if isinstance(row, BadRow):
                yield row
            else:
                likely = next(answers)
                yield Prediction(row.line, classes[likely.index(max(likely))], tuple(likely))


_Chunk = tuple[list[Row | BadRow], list[list[int]]]  # rows, and the ids of those that are good


def encode_ahead(words: Tokenizer, rows: Iterator[Row | BadRow], chunk: int) -> Iterator[_Chunk]:
    """Chunks of rows with their ids, each made while the one before is in use.

    The thread that makes them may wait for input that never comes, so nobody waits for it, except
    while it encodes: that takes a moment, and the program must not end in the middle of it.
    """
    sizes, encoding, ended = chunk_sizes(chunk), Lock(), Event()

    def make(made: Future[_Chunk]) -> None:
        try:
            group = list(islice(rows, next(sizes)))
            texts = [row.text for row in group if isinstance(row, Row)]
            with encoding:
                made.set_result((group, [] if ended.is_set() else words.encode(texts)))
        except BaseException as error:
            made.set_exception(error)

    def start() -> Future[_Chunk]:
        made: Future[_Chunk] = Future()
        Thread(target=make, args=(made,), daemon=True).start()
        return made

    coming = start()
    try:
        while True:
            group, encoded = coming.result()
            if not group:
                return
            coming = start()
            yield group, encoded
    finally:
        with encoding:
            ended.set()


def chunk_sizes(chunk: int) -> Iterator[int]:
    """How many rows to take each time: few at first, since the model has to wait for them."""
    size = min(chunk, _FIRST)
    while True:
        yield size
        size = min(chunk, 2 * size)


def batches_of(
    words: Tokenizer, encoded: Sequence[Sequence[int]], batch: int
) -> Iterator[tuple[list[int], dict[str, NDArray[Any]]]]:
    """Positions and inputs of rows in batches, those of like length together."""
    order = sorted(range(len(encoded)), key=lambda position: len(encoded[position]))
    for start in range(0, len(order), batch):
        positions = order[start : start + batch]
        yield positions, words.pad_arrays([encoded[position] for position in positions])


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """The probabilities of logits [rows, classes]."""
    with np.errstate(invalid="ignore"):  # what is not a number stays so, and is refused later
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: NDArray[Any] = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _answer(
    model: Answering, words: Tokenizer, encoded: Sequence[Sequence[int]], batch: int
) -> list[list[float]]:
    answers: list[list[float]] = [[]] * len(encoded)
    for positions, inputs in batches_of(words, encoded, batch):
        likely = softmax(model(**inputs)).tolist()
        for position, row in zip(positions, likely, strict=True):
            answers[position] = row
    return answers


def lines_of(predictions: Iterable[Prediction], classes: Sequence[str], form: str) -> Iterator[str]:
    """Predictions as the lines of a file: CSV with a header, or one JSON object per line."""
    if form not in FORMATS:
        raise ValueError(f"a format is one of {', '.join(FORMATS)}, not {form!r}")
    if form == "jsonl":
        for p in predictions:
            likely = {name: round(v, 6) for name, v in zip(classes, p.probabilities, strict=True)}
            facts = {"line": p.line, "label": p.label, "probabilities": likely}
            yield json.dumps(facts, ensure_ascii=False, allow_nan=False) + "\n"
        return
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["line", "label", *(f"p({name})" for name in classes)])
    for p in predictions:
        writer.writerow([p.line, p.label, *(f"{v:.6f}" for v in p.probabilities)])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    if buffer.tell():  # the header, where there was nothing to predict
        yield buffer.getvalue()
