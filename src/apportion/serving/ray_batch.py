"""Batch jobs on Ray Data: files of texts in, one file of answers out, however often it is killed.

One read, one map, one write: readers give every row a number, actors hold the model once each and
answer on one thread, writers note the numbers of the rows in each part (`CheckpointConfig`). When
all rows have been answered, the parts become one file in the order of the texts.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.rows import BadRow
from apportion.data.shards import Columns, Shard, find_shards
from apportion.files import holding, read_json, remove, sha256, write_text
from apportion.serving.parts import Answer, Layout, Parts, form_of, write_answers
from apportion.serving.ray_cluster import connected, require_ray
from apportion.serving.runtime.session import Runtime

PART = 256 * 1024  # bytes of text that are answered, written and noted together
_GROUP = 16 * 2**20  # bytes of files that one task reads
_HELPER = 0.25  # of a CPU for a reader or a writer: they wait most of the time
_FREE = 1.0 + 2 * _HELPER  # CPUs that actors leave to what reads, filters and writes
Answering = Callable[[Sequence[str]], tuple[list[str], NDArray[Any], list[float]]]


@dataclass(frozen=True)
class Question:
    """What is asked of every text: everything that decides an answer, but for the text."""

    folder: str
    budget: float | None = None
    batch: int = 64  # rows in a call of the model


@dataclass(frozen=True)
class Answered:
    """What a batch job did: rows with an answer, rows that could not be read, rows from before."""

    rows: int
    bad: int
    before: int  # answered by runs that were stopped
    seconds: float


def answerer(runtime: Runtime, *, budget: float | None = None, batch: int = 64) -> Answering:
    """What an actor answers with: texts in; labels, probabilities and budgets out.

    Texts of like length share a call of the model.
    """
    level = runtime.level_of(runtime.levels[-1] if budget is None else budget)

    def answer(texts: Sequence[str]) -> tuple[list[str], NDArray[Any], list[float]]:
        encoded = runtime.tokenizer.encode(texts)
        likely = np.zeros((len(texts), len(runtime.classes)), np.float32)
        order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
        for start in range(0, len(order), batch):
            places = order[start : start + batch]
            rows = runtime.tokenizer.pad_arrays([encoded[place] for place in places])
            logits = runtime(**rows, budget=level)
            powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
            likely[places] = powers / powers.sum(axis=-1, keepdims=True)
        labels = [runtime.classes[place] for place in likely.argmax(axis=-1)]
        return labels, likely, [level] * len(texts)

    return answer


def _answerer_of(question: Question, runtime: Runtime) -> Answering:
    """The answerer that a question needs: the one place that knows of all kinds of them."""
    return answerer(runtime, budget=question.budget, batch=question.batch)


def predict_on_ray(
    folder: str | Path,
    texts: str | Path,
    *,
    out: str | Path,
    text: Sequence[str] | None = None,
    id: str | None = None,
    kind: str | None = None,
    budget: float | None = None,
    batch: int = 64,
    address: str | None = None,
    actors: int | None = None,
    part: int = PART,
    progress: Callable[[int, int], None] | None = None,
    on_bad_row: Callable[[str, BadRow], None] | None = None,
) -> Answered:
    """Labels the texts of a file, a folder or a pattern on Ray: one CSV, JSONL or Parquet file.

    Rows keep their order; they are known by file and line, and by the column `id` where one is
    named. A job that was killed goes on when it is started again: what it has is in a hidden folder
    beside `out`. Texts, model and that folder must be where every machine of the cluster sees them.
    """
    started = time.monotonic()
    require_ray()
    out = Path(out).absolute()
    form_of(out)
    if batch < 1 or part < 1 or (actors is not None and actors < 1):
        raise ValueError(f"batch, part and actors must be at least 1: {batch}, {part}, {actors}")
    question = Question(str(Path(folder).absolute()), budget, batch)
    runtime = Runtime(folder, threads=1)
    _answerer_of(question, runtime)  # what an actor would refuse is refused here
    trained = (runtime.facts.get("task") or {}).get("text", ["text"])
    columns = Columns(tuple(text or trained), id)
    shards = find_shards(texts, columns, kind=kind)
    if out in [shard.path for shard in shards]:
        raise ValueError(f"--out {out.name} is one of the files of the texts; choose another")
    layout = Layout(runtime.classes, tuple(shard.path.name for shard in shards), id=id is not None)
    total = sum(shard.rows for shard in shards)
    place = job_folder(out)
    with holding(place):
        _open_job(place, _job_of(question, runtime, shards, columns))
        parts = Parts(place)
        before = parts.rows()
        del runtime
        if before < total:
            with connected(address) as ray, _telling(progress, parts, total):
                _run(ray, question, shards, columns, place=place, actors=actors, part=part)
        counts = _Counts(layout, on_bad_row)
        write_answers(counts.good(parts.merged(), total), out, layout=layout)
        remove(place)
    return Answered(counts.rows, counts.bad, before, time.monotonic() - started)


def job_folder(out: Path) -> Path:
    """Where a job keeps what it has answered so far: hidden, so that no pattern finds its parts."""
    return out.with_name(f".{out.name}.job")


def _job_of(
    question: Question, runtime: Runtime, shards: Sequence[Shard], columns: Columns
) -> dict[str, Any]:
    """All that decides the answers of a job: another job must not go on with its parts."""
    model = Path(question.folder)
    files = sorted(path for path in model.rglob("*") if path.is_file())
    names = "".join(f"{path.relative_to(model)} {sha256(path)}\n" for path in files)
    return {
        "texts": [[shard.path.name, shard.kind, shard.rows, shard.digest] for shard in shards],
        "columns": [list(columns.text), columns.id],
        "model": hashlib.sha256(names.encode()).hexdigest(),
        "question": {key: value for key, value in asdict(question).items() if key != "folder"},
    }


def _open_job(place: Path, job: dict[str, Any]) -> None:
    """Makes the folder of a job, or checks that it is this job's."""
    note = place / "job.json"
    if not note.exists():
        remove(place)  # of a kill before the note was written: there are no answers yet
        place.mkdir(parents=True)
        write_text(note, json.dumps(job, indent=1) + "\n")
        return
    known = read_json(note)
    other = [name for name, value in job.items() if known.get(name) != value]
    if other:
        raise ValueError(
            f"{place} holds a stopped job with other {' and '.join(other)}; remove that folder to "
            "start anew, or choose another --out"
        )


@contextmanager
def _telling(
    progress: Callable[[int, int], None] | None, parts: Parts, total: int
) -> Iterator[None]:
    """Tells how many rows are done, every second, while the job runs."""
    ended = Event()

    def tell() -> None:
        while not ended.wait(1.0):
            progress and progress(parts.rows(), total)

    watching = Thread(target=tell, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _run(
    ray: ModuleType,
    question: Question,
    shards: Sequence[Shard],
    columns: Columns,
    *,
    place: Path,
    actors: int | None,
    part: int,
) -> None:
    """Answers the rows that are not done yet, on all CPUs of the cluster."""
    from ray.data import ActorPoolStrategy, DataContext, read_datasource
    from ray.data.checkpoint import CheckpointConfig
    from ray.exceptions import RayError

    from apportion.serving.ray_texts import Texts

    cpus = float(ray.cluster_resources().get("CPU", 1.0))
    actors = actors or max(1, int(cpus))
    # Actors that take all CPUs would leave none to the readers that they wait for. CPUs are a count
    # to Ray and no fence: each actor still has its thread.
    share = max(0.01, min(0.8, round((cpus - _FREE) / actors, 2)))
    settings = DataContext.get_current().copy()
    settings.enable_progress_bars = settings.print_on_execution_start = False
    settings.target_max_block_size = part
    settings.checkpoint_config = CheckpointConfig(
        "row", str(place / "done"), delete_checkpoint_on_success=False
    )
    source = Texts(shards, columns, group=_GROUP)
    with DataContext.current(settings):
        rows = read_datasource(source, num_cpus=_HELPER, override_num_blocks=len(source.groups))
        answers = rows.map_batches(
            _Actor,
            fn_constructor_kwargs={"question": question},
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=actors),
            num_cpus=share,
            udf_modifying_row_count=False,
        )
        try:
            answers.write_parquet(str(place / "answers"), ray_remote_args={"num_cpus": _HELPER})
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ValueError):
                raise ValueError(str(cause)) from None
            raise OSError(f"the job on Ray failed; the same command goes on: {error}") from error


class _Actor:
    """Holds the model once, and answers blocks of rows on one thread."""

    def __init__(self, question: Question) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # or it takes every core
        self._answer = _answerer_of(question, Runtime(question.folder, threads=1))

    def __call__(self, rows: Any) -> Any:
        """The answers to a table of rows; those that could not be read have none."""
        import pyarrow as pa

        texts = rows.column("text").to_pylist()
        places = [place for place, text in enumerate(texts) if text is not None]
        labels, likely, budgets = self._answer([texts[place] for place in places])
        if not np.isfinite(likely).all():
            raise ValueError("an answer of the model is not a number: are its weights damaged?")
        by_place = dict(
            zip(places, zip(labels, likely.tolist(), budgets, strict=True), strict=True)
        )
        said = [by_place.get(place, (None, None, None)) for place in range(len(texts))]
        found = {
            "label": pa.array([one[0] for one in said], pa.string()),
            "probabilities": pa.array([one[1] for one in said], pa.list_(pa.float32())),
            "budget": pa.array([one[2] for one in said], pa.float64()),
        }
        kept = {name: rows.column(name) for name in ("row", "shard", "line", "id", "problem")}
        return pa.table(kept | found)


class _Counts:
    """Counts answers on their way into the file, and reports rows that could not be read."""

    def __init__(self, layout: Layout, on_bad_row: Callable[[str, BadRow], None] | None) -> None:
        self.layout, self.on_bad_row = layout, on_bad_row
        self.rows = self.bad = 0

    def good(self, answers: Iterator[Answer], total: int) -> Iterator[Answer]:
        """The answers of rows that could be read; rows that are missing are an error."""
        for answer in answers:
            if answer.problem is None:
                self.rows += 1
                yield answer
                continue
            self.bad += 1
            if self.on_bad_row:
                name = self.layout.shards[answer.shard]
                self.on_bad_row(name, BadRow(answer.line, answer.problem))
        if self.rows + self.bad != total:
            missing = total - self.rows - self.bad
            raise OSError(f"{missing:,} of {total:,} rows have no answer; run the command again")
