"""Batch jobs on Ray Data: files of texts in, one file of answers out, however often it is killed.

One read, one map, one write: readers give every row a number, actors hold the model once each and
answer on one thread, writers note the numbers of the rows in each part (`CheckpointConfig`). When
all rows have been answered, the parts become one file in the order of the texts.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import Any

from apportion.data.rows import BadRow, Row
from apportion.data.shards import Columns, Shard, find_shards
from apportion.files import first_line, holding, read_json, remove, write_text
from apportion.serving.batch.parts import (
    Answer,
    Layout,
    Parts,
    answer_schema,
    form_of,
    write_answers,
)
from apportion.serving.batch.questions import Question, answerer
from apportion.serving.batch.ray_cluster import check_answers, connected, require_ray
from apportion.serving.batch.routing import read_routing

PART = 128 * 1024  # bytes of text that are answered, written and noted together
_GROUP = 16 * 2**20  # bytes of files that one task reads
# Of a CPU, for a reader or a writer: they wait most of the time. No actor has three decimals: with
# the same share as an actor, a reader would become part of it, and one file would keep one actor.
_HELPER = 0.125
_FREE = 2 * _HELPER  # CPUs that actors leave to what reads and writes


@dataclass(frozen=True)
class Answered:
    """What a batch job did: rows with an answer, rows that could not be read, rows from before."""

    rows: int
    bad: int
    before: int  # answered by runs that were stopped
    seconds: float


def predict_on_ray(
    folder: str | Path,
    texts: str | Path,
    *,
    out: str | Path,
    text: Sequence[str] | None = None,
    id: str | None = None,
    kind: str | None = None,
    budget: float | None = None,
    certificate: str | Path | None = None,
    routing: str | Path | None = None,
    tag: str | None = None,
    batch: int = 64,
    address: str | None = None,
    actors: int | None = None,
    part: int = PART,
    progress: Callable[[int, int], None] | None = None,
    on_bad_row: Callable[[str, int, str], None] | None = None,
) -> Answered:
    """Labels the texts of a file, a folder or a pattern on Ray: one CSV, JSONL or Parquet file.

    Texts are answered at a budget, by the cascade of a certificate or by a routing file with the
    tags of a column. Rows keep their order; they are known by file and line, and by the column
    `id` where one is named. A job that was killed goes on when it is started again: what it has is
    in a hidden folder beside `out`. Texts, model and that folder must be where every machine of the
    cluster sees them. `progress` hears how many of the rows are done, `on_bad_row` the file, the
    line and the problem of a row that can't be read.
    """
    started = time.monotonic()
    require_ray()
    if address is not None:
        check_answers(address)  # before texts are counted, which may take long
    out = Path(out).absolute()
    form_of(out)
    if min(batch, part, 1 if actors is None else actors) < 1:
        raise ValueError(f"batch, part and actors must be at least 1: {batch}, {part}, {actors}")
    if sum(way is not None for way in (budget, certificate, routing)) > 1:
        raise ValueError("a budget, a certificate and a routing file exclude each other")
    question = Question(
        str(Path(folder).absolute()),
        budget,
        None if certificate is None else str(Path(certificate).absolute()),
        None if routing is None else str(Path(routing).absolute()),
        batch,
    )
    runtime = question.runtime()
    _, classes = answerer(runtime, question)  # what an actor would refuse is refused here
    trained = (runtime.facts.get("task") or {}).get("text", ["text"])
    columns = Columns(tuple(text or trained), id, _tag_of(question, tag))
    shards = find_shards(texts, columns, kind=kind)
    if out in [shard.path for shard in shards]:
        raise ValueError(f"--out {out.name} is one of the files of the texts; choose another")
    names = names_of([shard.path for shard in shards])
    layout = Layout(classes, names, id=id is not None, budget=bool(certificate or routing))
    total = sum(shard.rows for shard in shards)
    place = job_folder(out)
    with holding(place):
        _open_job(place, _job_of(question, runtime.identity, shards, columns))
        del runtime
        parts = Parts(place)
        parts.mend()
        before = len(parts.numbers())
        try:
            if before < total:
                with connected(address) as ray, _telling(progress, parts, total):
                    _run(ray, question, shards, columns, place=place, actors=actors, part=part)
        except BaseException:
            if not parts.rows():
                remove(place)  # there is nothing to go on with
            raise
        counts = _Counts(layout, on_bad_row)
        write_answers(counts.good(parts.merged(), total), out, layout=layout)
        remove(place)
    return Answered(counts.rows, counts.bad, before, time.monotonic() - started)


def _tag_of(question: Question, tag: str | None) -> str | None:
    """The column of the tags: as asked for, or as the routing file says."""
    if question.routing is None:
        if tag is not None:
            raise ValueError("--tag needs --routing")
        return None
    tag = tag or read_routing(Path(question.routing)).tag
    if tag is None:
        raise ValueError(f"{question.routing} names no tag column; name it with --tag")
    return tag


def names_of(paths: Sequence[Path]) -> tuple[str, ...]:
    """What the output calls files: by their names or, where two are alike, from a common folder."""
    names = tuple(path.name for path in paths)
    if len(set(names)) == len(names):
        return names
    common = Path(os.path.commonpath(paths))
    return tuple(path.relative_to(common).as_posix() for path in paths)


def job_folder(out: Path) -> Path:
    """Where a job keeps what it has answered so far: hidden, so that no pattern finds its parts."""
    return out.with_name(f".{out.name}.job")


def _job_of(
    question: Question, model: dict[str, str], shards: Sequence[Shard], columns: Columns
) -> dict[str, Any]:
    """All that decides the answers of a job: another job must not go on with its parts."""
    return {
        "texts": [
            [name, shard.kind, shard.rows, shard.digest]
            for name, shard in zip(names_of([one.path for one in shards]), shards, strict=True)
        ],
        "columns": {"text": list(columns.text), "id": columns.id, "tag": columns.tag},
        "model": model,
        "budget": question.budget,
        "files": question.digests,
        "batch": question.batch,
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

    from apportion.serving.batch.ray_texts import Noted, Texts

    cpus = float(ray.cluster_resources().get("CPU", 1.0))
    source = Texts(shards, columns, group=_GROUP, done=Parts(place).numbers())
    actors = actors_for(source.estimate_inmemory_data_size(), asked=actors, cpus=cpus, part=part)
    # Actors that take all CPUs would leave none to the readers that they wait for. CPUs are a count
    # to Ray and no fence: each actor still has its thread.
    share = max(0.01, min(0.8, round((cpus - _FREE) / actors, 2)))
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    settings = DataContext.get_current().copy()
    settings.raise_original_map_exception = True  # what an actor says, and not where it said it
    settings.enable_progress_bars = settings.print_on_execution_start = False
    settings.target_max_block_size = part
    noting: dict[str, Any] = {
        "delete_checkpoint_on_success": False,
        "checkpoint_manager_cls": Noted,
    }
    settings.checkpoint_config = CheckpointConfig("row", str(place / "done"), **noting)
    few = max(1, actors // 4)  # readers and writers: each is a process, and Ray would start many
    with DataContext.current(settings):
        blocks = len(source.groups)
        rows = read_datasource(
            source, num_cpus=_HELPER, concurrency=few, override_num_blocks=blocks
        )
        answers = rows.map_batches(
            Actor,
            fn_constructor_kwargs={"question": question},
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=actors),
            num_cpus=share,
            udf_modifying_row_count=False,
        )
        try:
            writing: dict[str, Any] = {"ray_remote_args": {"num_cpus": _HELPER}, "concurrency": few}
            answers.write_parquet(str(place / "answers"), **writing)
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ValueError):
                raise ValueError(str(cause)) from None
            why = first_line(cause if isinstance(cause, Exception) else error)
            raise OSError(f"the job on Ray failed; the same command goes on: {why}") from error


def actors_for(size: int, *, asked: int | None, cpus: float, part: int) -> int:
    """As many actors as were asked for, or as there are CPUs; no more than there are parts."""
    return min(asked or max(1, int(cpus)), max(1, size // part))


class Actor:
    """Holds the model once, and answers blocks of rows on one thread."""

    def __init__(self, question: Question) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # or it takes every core
        self._answer, self._classes = answerer(question.runtime(), question)

    def __call__(self, rows: Any) -> Any:
        """The answers to a table of rows; those that can't be answered have a problem."""
        import pyarrow as pa

        given = rows.to_pylist()
        # A row is known by its place here: lines of several files may be the same.
        good = [
            Row(place, row["text"], row["tag"] or "")
            for place, row in enumerate(given)
            if row["text"] is not None
        ]
        for answer in self._answer(good) if good else ():
            if isinstance(answer, BadRow):
                given[answer.line]["problem"] = answer.problem
                continue
            shares = [answer.probabilities.get(name) for name in self._classes]
            given[answer.line] |= {
                "label": answer.label,
                "budget": answer.budget,
                "probabilities": shares,
            }
        return pa.Table.from_pylist(given, schema=answer_schema())


class _Counts:
    """Counts answers on their way into the file, and reports rows that could not be read."""

    def __init__(self, layout: Layout, on_bad_row: Callable[[str, int, str], None] | None) -> None:
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
                self.on_bad_row(self.layout.shards[answer.shard], answer.line, answer.problem)
        if self.rows + self.bad != total:
            missing = total - self.rows - self.bad
            raise OSError(f"{missing:,} of {total:,} rows have no answer; run the command again")
