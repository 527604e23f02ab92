"""What `predict --length` and `certify --length` do: documents read in windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from apportion.cli.streams import Watch, opened, say, target_of

if TYPE_CHECKING:
    from apportion.serving.batch.windows import Reading
    from apportion.serving.runtime.session import Runtime


@dataclass(frozen=True)
class Long:
    """What `predict` was asked for, of documents."""

    folder: Path
    texts: Path
    out: Path | None
    form: str
    as_csv: bool
    columns: list[str] | None
    batch: int
    threads: int


def predict_long(
    asked: Long,
    budget: float | None,
    *,
    length: int | None,
    overlap: int | None,
    until_sure: Path | None,
) -> None:
    """Labels documents, each read in windows, and says how many windows that took."""
    from apportion.data.rows import read_csv, read_lines
    from apportion.serving.batch.windows import (
        Reading,
        predict_documents,
        read_documents,
        read_within,
        usual_overlap,
    )
    from apportion.serving.runtime.prediction import lines_of
    from apportion.serving.runtime.session import Runtime

    runtime = Runtime(asked.folder, threads=asked.threads)
    words, threshold = runtime.tokenizer, None
    level = runtime.level_of(runtime.levels[-1] if budget is None else budget)
    if until_sure is not None:
        reading = Reading.load(until_sure)
        reading.check(runtime.identity)
        if length is not None or overlap is not None or budget is not None:
            raise ValueError(
                "the certificate of --until-sure says the length, the overlap and the budget: "
                "leave --length, --overlap and --budget out"
            )
        length, overlap = reading.longest, reading.overlap
        level, threshold = reading.budget, reading.threshold
    if length is None:
        raise ValueError("--overlap is of windows; say how many tokens are read with --length")
    overlap = usual_overlap(words) if overlap is None else overlap
    words.windows([], longest=length, overlap=overlap)  # complains before a file is opened
    say(_in_words(runtime, length, overlap, budget, threshold))
    if budget is None:
        model = partial(runtime, budget=level)
        read = partial(read_documents, model, words, threshold=threshold, batch=asked.batch)
    else:
        read = partial(read_within, runtime, budget=budget, batch=asked.batch)
    columns = asked.columns or (runtime.facts.get("task") or {}).get("text", ["text"])
    told: dict[str, int] = {}
    with (
        target_of(asked.out) as target,
        opened(asked.texts) as stream,
        Watch(stream, asked.texts) as watch,
    ):
        name = asked.texts.name
        rows = read_csv(stream, name, columns, None) if asked.as_csv else read_lines(stream)
        answered = predict_documents(
            read,
            words,
            runtime.classes,
            rows,
            longest=length,
            overlap=overlap,
            told=told,
        )
        for line in lines_of(watch.good(answered), runtime.classes, asked.form):
            target.write(line)
        target.flush()
    watch.sum_up(name)
    say(f"windows: {told.get('read', 0):,} of {told.get('windows', 0):,} were read")


def _in_words(
    runtime: Runtime, length: int, overlap: int, budget: float | None, threshold: float | None
) -> str:
    """How texts are read, in a sentence."""
    window = runtime.tokenizer.length
    if length <= window:
        return f"the model reads {window} tokens, so {length} need one window"
    how = "" if threshold is None else f", on until the margin is {threshold:.4f}"
    if budget is not None:
        how = f", as many as {budget:g} of the cost of all pays for"
    return (
        f"the model reads {window} tokens: texts of up to {length} are read in windows that share "
        f"{overlap}{how}, their answers pooled by their tokens"
    )


def certify_windows(
    runtime: Runtime,
    texts: Sequence[str],
    *,
    out: Path,
    length: int,
    overlap: int | None,
    budget: float,
    disagree_at_most: float,
    confidence: float,
    rows: int,
    batch: int,
    seed: int,
) -> Reading:
    """Writes a certificate of reading on until sure, and says what it buys."""
    from apportion.serving.batch.windows import certify_reading

    made = certify_reading(
        runtime,
        texts,
        longest=length,
        overlap=overlap,
        budget=budget,
        disagree_at_most=disagree_at_most,
        confidence=confidence,
        rows=rows,
        batch=batch,
        seed=seed,
    )
    made.save(out)
    if made.threshold is None:
        say("No threshold could be certified, so every window is read.")
    else:
        say(
            f"At most {100 * made.disagree_at_most:g} % of the answers differ from those of all "
            f"windows, with {100 * made.confidence:g} % confidence: {made.disagreements} of "
            f"{made.rows:,} did. {made.windows_read:.2f} windows of {made.windows:.2f} are read."
        )
    say(str(out))
    return made
