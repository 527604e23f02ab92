"""Throughput: how many rows a second are predicted, beside what the bare model answers."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from apportion.data.rows import read_csv
from apportion.data.task import Task
from apportion.serving.bench.timing import measure
from apportion.serving.runtime.prediction import (
    CHUNK,
    ENCODING,
    Answering,
    Prediction,
    batches_of,
    chunk_sizes,
    lines_of,
    predict,
)

_PARALLEL = "TOKENIZERS_PARALLELISM"


@contextmanager
def _one_thread_for_words() -> Iterator[None]:
    """Encodes with one thread inside; the library takes as many as there are cores."""
    before = os.environ.get(_PARALLEL)
    os.environ[_PARALLEL] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLEL]
        else:
            os.environ[_PARALLEL] = before


def time_predictions(
    model: Answering,
    task: Task,
    batch: int,
    budget: float,
    repeats: int = 5,
    rows: int = 2000,
) -> dict[str, Any]:
    """A record of how much of the bare model's throughput is left when texts are predicted.

    The model is a function of arrays, as `Runtime` is and `on_arrays` makes one of torch's.
    The bare arm calls the model on batches that were encoded before. The other goes all the way,
    from the text of a CSV file to the lines of another; the model has one thread in both, and
    encoding another one. Arms take turns.
    """
    words, texts = task.words, (task.test.texts or ())[:rows]
    assert words is not None and texts
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["text"])
    writer.writerows([text] for text in texts)
    encoded = words.encode(texts)
    ready: list[dict[str, NDArray[Any]]] = []
    left, sizes = iter(encoded), chunk_sizes(CHUNK)
    while chunk := list(islice(left, next(sizes))):
        ready += [inputs for _, inputs in batches_of(words, chunk, batch)]

    def bare() -> None:
        for inputs in ready:
            model(**inputs)

    def whole() -> int:
        file.seek(0)
        answered = predict(model, words, task.classes, read_csv(file, "", ["text"], None), batch)
        good = (answer for answer in answered if isinstance(answer, Prediction))
        return sum(len(line) for line in lines_of(good, task.classes, "csv"))

    with _one_thread_for_words():
        alone, all_the_way = measure({"bare": bare, "predict": whole}, repeats, warmup=1)
    return {
        "kind": "throughput",
        "budget": budget,
        "rows": len(texts),
        "batch": batch,
        "bare": round(1000 * len(texts) / alone.median_ms, 1),  # rows per second
        "predict": round(1000 * len(texts) / all_the_way.median_ms, 1),
        "share": round(all_the_way.speedup, 4),
        "low": round(all_the_way.low, 4),
        "high": round(all_the_way.high, 4),
        "repeats": repeats,
        "threads": alone.threads,
        "encoding": ENCODING,
    }
