"""A comparison of runtimes: one checkpoint in every way that people would run it, as records.

Its file is no experiment: nothing is trained, and a subject is a checkpoint that exists. It says
which arms' shapes and threads are timed, which data the subjects are of, and what is to be reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal, get_type_hints

from apportion.data.sources import read_source
from apportion.data.text import Text
from apportion.elastic.checkpoint import load, weights_digest
from apportion.files import check, holding
from apportion.serving.bench.peer_files import PeerFiles
from apportion.serving.bench.peers import NAMED, PEERS
from apportion.study import records
from apportion.study.experiment import read_toml, task_of
from apportion.study.peer_measuring import (
    GROUPED,
    Subject,
    measure_answers,
    measure_memory,
    measure_switching,
    measure_throughput,
    measure_times,
)
from apportion.study.peer_records import ComparedRecord, PeerLeftOutRecord
from apportion.study.production import task_of_checkpoint
from apportion.study.protocols import MeasuredRows

_SHAPE = re.compile(r"([1-9]\d*) x ([1-9]\d*)")
Measure = Literal[
    "speedup",
    "slower",
    "difference",
    "lost",
    "agreement",
    "alone",
    "file",
    "resident",
    "switching",
    "throughput",
]


@dataclass(frozen=True)
class Goal:
    """What a comparison sets out to reach: a measure of an arm, between bounds.

    Over levels it is the mean, lowest or highest; with a level it is that level's. `speedup` is
    over another arm, `slower` in percent of it; `difference` is of logits, `lost` in points of
    accuracy, both to the arm that it has to answer like; `agreement` (with that arm), `alone` (as
    in a batch) and `throughput` (of the bare session) are in percent; `file` and `resident` are
    bytes over those of another process; `switching` is in percent of the time of sorted calls.
    """

    says: str
    measure: Measure = "speedup"
    arm: str = ""
    level: float | None = None
    over: str = ""
    shape: str = ""
    threads: int = 1
    statistic: Literal["mean", "lowest", "highest"] = "highest"
    at_least: float | None = None
    at_most: float | None = None
    untested: str = ""  # why it is not judged here; then nothing else is needed


@dataclass(frozen=True)
class Comparison:
    """What is timed and measured of each subject."""

    name: str
    title: str
    subjects: Mapping[str, str]  # the digest of each one's data, by its name
    shapes: tuple[str, ...]  # "8 x 128", rows x tokens
    threads: tuple[int, ...] = (1,)
    repeats: int = 41
    grouped_rows: int = 512  # real rows, by length; none of them if 0
    grouped_repeats: int = 7
    batch: int = 32
    goals: tuple[Goal, ...] = ()

    @property
    def smallest(self) -> str:
        """The shape with the fewest tokens in a call."""
        return min(self.shapes, key=lambda shape: prod(size_of(shape)))

    @property
    def timed(self) -> tuple[str, ...]:
        """All that is timed: the shapes, and real rows."""
        return (*self.shapes, *[GROUPED] * (self.grouped_rows > 0))


def is_comparison(path: Path) -> bool:
    """Whether a file is of this kind; an experiment has no subjects."""
    return "subjects" in read_toml(path)


def read_comparison(path: Path) -> Comparison:
    """The comparison in a TOML file, checked."""
    data = read_toml(path)
    try:
        goals = data.pop("goal", [])
        known = {
            **get_type_hints(Comparison),
            "subjects": dict[str, str],
            "threads": tuple[int, ...],
        }
        del known["goals"]
        check("the file", data, known)
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in data.items()
        }
        return _checked(Comparison(**values, goals=tuple(map(_goal, goals))))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def _goal(entry: dict[str, Any]) -> Goal:
    check("[[goal]]", entry, get_type_hints(Goal))
    goal = Goal(**entry)
    if goal.untested:
        return goal
    if goal.arm not in NAMED or (goal.at_least is None and goal.at_most is None):
        raise ValueError(
            f"a goal needs at_least or at_most and an arm, one of {', '.join(NAMED)}: {goal.says}"
        )
    if goal.measure in ("speedup", "slower", "file", "resident") and not goal.over:
        raise ValueError(
            f"a goal of {goal.measure} needs over, what it is compared with: {goal.says}"
        )
    return goal


def _checked(plan: Comparison) -> Comparison:
    for shape in plan.shapes:
        if not _SHAPE.fullmatch(shape):
            raise ValueError(f"a shape is rows x tokens, as '8 x 128', not {shape!r}")
    if not plan.shapes or not plan.subjects or not plan.threads or min(plan.threads) < 1:
        raise ValueError("a comparison needs subjects, shapes and threads, one of each at least")
    unknown = [g.shape for g in plan.goals if g.shape not in ("", *plan.timed)]
    if unknown:
        raise ValueError(f"a goal is of shape {unknown[0]!r}, which is not timed")
    return plan


LEFT_OUT = PeerLeftOutRecord.kind
# Goals are of these; of the others it is good to know.
_ANSWERED_FIRST = ("torch", "views", "file", "file-int8", "onnxruntime-int8")
# Times, switching and throughput need an idle machine; memory and answers do not mind company.
PARTS = ("times", "switching", "throughput", "memory", "answers")


@dataclass(frozen=True)
class Part:
    """A piece of the work whose records are written together; then it is done."""

    name: str  # one of PARTS
    words: str
    kind: str
    measure: Callable[[], Sequence[ComparedRecord]]
    where: Mapping[str, Any]

    def is_done(self, have: Sequence[Mapping[str, Any]]) -> bool:
        """Whether its records are there."""
        kinds = (self.kind, LEFT_OUT) if "arm" in self.where else (self.kind,)
        found = [r for r in have if r.get("kind") in kinds]
        return any(all(r.get(name) == v for name, v in self.where.items()) for r in found)


def run_comparison(
    plan: Comparison,
    checkpoint: Path,
    *,
    data: Path | None,
    work: Path,
    results: Path,
    parts: Sequence[str] = PARTS,
    watch: Callable[[str, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Measures a checkpoint in every way, and appends to the records what they lack.

    Files that arms read are written into `work` once. A killed run goes on where it was.
    """
    for name in parts:
        if name not in PARTS:
            raise ValueError(f"a comparison has the parts {', '.join(PARTS)}, not {name!r}")
    subject = _named(plan, _subject(checkpoint, data, work, max(plan.threads)))
    with holding(work, results):
        for part in _parts(plan, subject, watch):
            if part.name in parts and not part.is_done(records.read(results)):
                if watch:
                    watch(part.words, 0, 1)
                records.append(results, *(record.to_dict() for record in part.measure()))
    return records.read(results)


def _parts(
    plan: Comparison, subject: Subject, watch: Callable[[str, int, int], None] | None
) -> list[Part]:
    own = {"subject": subject.name, "weights": subject.weights}
    # Times first: a machine is idle for so long, and the rest does not mind company.
    parts = []
    for threads in plan.threads:
        for shape in plan.timed:
            words = f"{shape}, {threads} thread{'s' * (threads > 1)}"
            parts.append(
                Part(
                    "times",
                    words,
                    "peer_latency",
                    _timing(plan, subject, shape, threads, words, watch),
                    {**own, "shape": shape, "threads": threads},
                )
            )
    return [
        *parts,
        Part(
            "switching",
            "switching",
            "peer_switching",
            lambda: measure_switching(subject, size_of(plan.smallest), repeats=plan.repeats),
            own,
        ),
        Part(
            "throughput",
            "throughput",
            "peer_throughput",
            lambda: measure_throughput(subject, batch=plan.batch, repeats=plan.grouped_repeats),
            own,
        ),
        Part("memory", "memory", "peer_memory", lambda: measure_memory(subject), own),
        *(
            Part(
                "answers",
                f"answers of {peer.words}",
                "peer_answers",
                partial(measure_answers, subject, batch=plan.batch, names=(peer.name,)),
                {**own, "arm": peer.name},
            )
            for peer in sorted(PEERS, key=lambda peer: peer.name not in _ANSWERED_FIRST)
        ),
    ]


def _timing(
    plan: Comparison,
    subject: Subject,
    shape: str,
    threads: int,
    words: str,
    watch: Callable[[str, int, int], None] | None,
) -> Callable[[], Sequence[ComparedRecord]]:
    def progress(done: int, total: int) -> None:
        if watch:
            watch(words, done, total)

    grouped = shape == GROUPED
    calls = subject.grouped(plan.grouped_rows, plan.batch) if grouped else None
    return lambda: measure_times(
        subject,
        calls or [subject.filled(*size_of(shape))],
        shape=shape,
        threads=threads,
        repeats=plan.grouped_repeats if grouped else plan.repeats,
        warmup=1 if grouped else 3,
        progress=progress,
    )


def size_of(shape: str) -> tuple[int, int]:
    """Rows and tokens of a shape."""
    rows, tokens = shape.split(" x ")
    return int(rows), int(tokens)


def compare_once(
    checkpoint: Path,
    *,
    data: Path | None,
    rows: int,
    repeats: int,
    threads: int,
    work: Path,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Comparison, list[dict[str, Any]]]:
    """One call of so many rows of the whole length in every way, and the plan that it is of."""
    subject = _subject(checkpoint, data, work, threads)
    shape = f"{rows} x {subject.words.length}"
    plan = Comparison(
        name="bench",
        title="Ways to run a checkpoint",
        subjects={subject.name: subject.data},
        shapes=(shape,),
        threads=(threads,),
        repeats=repeats,
        grouped_rows=0,
    )
    timed = measure_times(
        subject,
        [subject.filled(*size_of(shape))],
        shape=shape,
        threads=threads,
        repeats=repeats,
        progress=progress,
        left_out=True,
    )
    return plan, [record.to_dict() for record in timed]


def _subject(checkpoint: Path, data: Path | None, work: Path, threads: int) -> Subject:
    """The checkpoint with the test rows of its data."""
    loaded = load(checkpoint)
    if loaded.require_elastic().form != "nested" or loaded.words is None:
        raise ValueError(f"{checkpoint} is no nested checkpoint of texts; only those have one file")
    task = task_of_checkpoint(loaded, data)
    spec = task_of(loaded.notes["task"], data)
    assert isinstance(spec, Text), "a checkpoint with a tokenizer is of texts"
    digest = read_source(spec.folder or spec.data, spec.text, spec.label).digest()
    weights = weights_digest(loaded.model)
    texts = list(task.train.texts or ())
    return Subject(
        name=checkpoint.resolve().name,
        weights=weights,
        data=digest,
        files=PeerFiles(loaded, work / weights, texts),
        task=MeasuredRows("all").of(spec, task),
        threads=threads,
    )


def _named(plan: Comparison, subject: Subject) -> Subject:
    """The subject as the plan, which has to know its data, calls it."""
    names = [name for name, own in plan.subjects.items() if own == subject.data]
    if not names:
        known = ", ".join(f"{name} ({own})" for name, own in plan.subjects.items())
        raise ValueError(f"the data has digest {subject.data}, and the comparison is of {known}")
    return replace(subject, name=names[0])
