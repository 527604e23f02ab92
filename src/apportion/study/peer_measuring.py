"""Measuring a checkpoint in every way that people would run it: answers, memory, time."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.task import Task
from apportion.data.tokenizer import Tokenizer
from apportion.files import write_bytes
from apportion.serving.bench.energy import joules_per_call, read_counters
from apportion.serving.bench.footprint import can_measure, measure_footprint
from apportion.serving.bench.peer_files import PeerFiles, graph_of
from apportion.serving.bench.peers import (
    NAMED,
    PEERS,
    Built,
    LeftOutError,
    Setting,
    build_peers,
)
from apportion.serving.bench.throughput import time_predictions
from apportion.serving.bench.timing import compare_times, measure, take_times, using_threads
from apportion.serving.runtime.prediction import Answering, batches_of
from apportion.serving.runtime.session import Runtime
from apportion.study.peer_records import (
    ComparedRecord,
    PeerAnswersRecord,
    PeerLatencyRecord,
    PeerLeftOutRecord,
    PeerMemoryRecord,
    PeerSwitchingRecord,
    PeerThroughputRecord,
)
from apportion.study.records import ABSENT, provenance

GROUPED = "grouped"
# What arms are compared with, where it could be built.
REFERENCES = ("torch", "torch-shortcut", "onnxruntime", "onnxruntime-int8", "openvino-int8")
PREDICTED_AT = 0.25  # the level that predictions are timed at, or the lowest above it
_SWITCHED = 8  # calls at each of two levels
Inputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Subject:
    """A checkpoint that is compared with its peers, and its test rows."""

    name: str
    weights: str
    data: str
    files: PeerFiles
    task: Task
    threads: int = 1  # for what is not timed

    @property
    def words(self) -> Tokenizer:
        """What encodes its texts."""
        assert self.task.words is not None
        return self.task.words

    @property
    def traced(self) -> dict[str, Any]:
        """What all of its records share."""
        return {"subject": self.name, "weights": self.weights, **provenance()}

    def encoded(self, rows: int | None = None) -> list[list[int]]:
        """Ids of its first test rows, or of all."""
        return self.words.encode((self.task.test.texts or ())[:rows])

    def filled(self, rows: int, tokens: int) -> dict[str, NDArray[Any]]:
        """A batch of some size without padding, of tokens as they follow each other in texts."""
        if tokens > self.words.length:
            raise ValueError(f"the model reads {self.words.length} tokens of a text, not {tokens}")
        stream = np.concatenate([np.array(ids, np.int64) for ids in self.encoded(rows * tokens)])
        ids = np.resize(stream, (rows, tokens))
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    def grouped(self, rows: int, batch: int) -> list[dict[str, NDArray[Any]]]:
        """Its first test rows in batches of like length, as `predict` makes them."""
        return [
            {name: values.astype(np.int64) for name, values in inputs.items()}
            for _, inputs in batches_of(self.words, self.encoded(rows), batch)
        ]


def measure_answers(
    subject: Subject, *, batch: int, names: Sequence[str] | None = None
) -> list[ComparedRecord]:
    """What arms answer to all test rows; and why the arms that are missing are."""
    labels = subject.task.test.labels.numpy()
    found: list[ComparedRecord] = []
    for peer in PEERS:
        if names is not None and peer.name not in names:
            continue
        try:
            own = _answers_of(subject, peer.name, batch)
        except LeftOutError as reason:
            found.append(PeerLeftOutRecord(**subject.traced, arm=peer.name, reason=str(reason)))
            continue
        beside = _answers_of(subject, peer.beside, batch)
        for level, logits in own.items():
            # Views of a smaller level stand beside the whole model: nothing else computes them.
            wanted = beside.get(level, beside[1.0])[0]
            found.append(
                PeerAnswersRecord(
                    **subject.traced,
                    arm=peer.name,
                    level=level,
                    runtime=peer.runtime(),
                    data=subject.data,
                    rows=len(labels),
                    batch=batch,
                    accuracy=round(float((logits[0].argmax(-1) == labels).mean()), 6),
                    beside=peer.beside,
                    agreement=_agreement(logits[0], wanted),
                    difference=float(f"{np.abs(logits[0] - wanted).max():.3g}"),
                    alone=_agreement(logits[1], logits[0]) if peer.int8 else ABSENT,
                )
            )
    return found


def _answers_of(subject: Subject, name: str, batch: int) -> dict[float, NDArray[np.float32]]:
    """Logits [in batches and, of int8, alone; rows; classes] of an arm by level, kept in a file."""
    kept = subject.files.folder / "answers" / f"{name}-{batch}.npz"
    if not kept.exists():
        built = build_peers(subject.files, Setting(subject.threads), names=(name,))
        if name in built.left_out:
            raise LeftOutError(built.left_out[name])
        encoded, batches = subject.encoded(), (batch, 1) if NAMED[name].int8 else (batch,)
        with using_threads(subject.threads):
            said: dict[str, Any] = {
                f"{level!r}": np.stack(
                    [answer_rows(answer, subject.words, encoded, batch=size) for size in batches]
                )
                for (_, level), answer in built.arms.items()
            }
        written = io.BytesIO()
        np.savez(written, **said)
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(kept, written.getvalue())
    with np.load(kept) as found:
        return {float(level): found[level] for level in found.files}


def _left_out(subject: Subject, built: Built) -> list[ComparedRecord]:
    return [
        PeerLeftOutRecord(**subject.traced, arm=name, reason=reason)
        for name, reason in built.left_out.items()
    ]


def answer_rows(
    answer: Answering, words: Tokenizer, encoded: Sequence[Sequence[int]], *, batch: int
) -> NDArray[np.float32]:
    """The logits [rows, classes] of rows in batches of like length."""
    rows: list[NDArray[Any]] = [np.empty(0)] * len(encoded)
    for places, inputs in batches_of(words, encoded, batch):
        for place, logits in zip(places, answer(**inputs), strict=True):
            rows[place] = logits
    return np.stack(rows).astype(np.float32)


def _agreement(own: NDArray[Any], other: NDArray[Any]) -> float:
    return round(float((own.argmax(-1) == other.argmax(-1)).mean()), 6)


def measure_memory(subject: Subject) -> list[ComparedRecord]:
    """Resident memory of a fresh process for each way to serve; none where no system tells it."""
    if not can_measure():
        reason = "this system does not say how much memory a process holds"
        return [PeerLeftOutRecord(**subject.traced, arm="memory", reason=reason)]
    files = subject.files
    one, one_int8 = graph_of(files.one_file(int8=False)), graph_of(files.one_file(int8=True))
    apart = [(graph_of(files.of_level(level)), [level]) for level in files.levels]
    ways: dict[str, list[tuple[Any, list[float]]]] = {
        "nothing": [],
        "onnxruntime": [(files.dense(), [])],
        "file": [(one, list(files.levels))],
        "onnxruntime-int8": [(files.dense_int8(), [])],
        "onnxruntime-int8-products": [(files.dense_products(), [])],
        "file-int8": [(one_int8, list(files.levels))],
        "one-session-per-level": apart,
    }
    length = min(128, subject.words.length)
    return [
        PeerMemoryRecord(
            **subject.traced,
            served=way,
            sessions=len(sessions),
            levels=sum(max(1, len(levels)) for _, levels in sessions),
            file_bytes=sum(path.stat().st_size for path, _ in sessions),
            resident_bytes=measure_footprint(sessions, rows=8, tokens=length),
        )
        for way, sessions in ways.items()
    ]


def measure_switching(
    subject: Subject, shape: tuple[int, int], *, repeats: int
) -> list[ComparedRecord]:
    """Calls that change the level each time, beside the same calls sorted by level."""
    runtime = Runtime(subject.files.one_file(int8=True), threads=1)
    inputs = subject.filled(*shape)
    low, high = runtime.levels[0], runtime.levels[-1]

    def run(levels: Sequence[float]) -> None:
        for level in levels:
            runtime(**inputs, budget=level)

    changing = [low, high] * _SWITCHED
    calls = {"sorted": partial(run, sorted(changing)), "changing": partial(run, changing)}
    _, result = measure(calls, repeats)
    return [
        PeerSwitchingRecord(
            **subject.traced,
            arm="file-int8",
            shape=f"{shape[0]} x {shape[1]}",
            calls=len(changing),
            threads=1,
            repeats=result.repeats,
            slower=round(1 / result.speedup, 4),
            low=round(1 / result.high, 4),
            high=round(1 / result.low, 4),
        )
    ]


def measure_throughput(subject: Subject, *, batch: int, repeats: int) -> list[ComparedRecord]:
    """How much of the bare session's rows a second `predict` keeps, from CSV to CSV."""
    runtime = Runtime(subject.files.one_file(int8=True), threads=1)
    level = min((one for one in runtime.levels if one >= PREDICTED_AT), default=runtime.levels[-1])
    answer = partial(runtime, budget=level)
    timed = time_predictions(answer, subject.task, batch=batch, budget=level, repeats=repeats)
    kept = ("rows", "batch", "bare", "predict", "share", "low", "high", "repeats", "threads")
    return [
        PeerThroughputRecord(
            **subject.traced, arm="file-int8", level=level, **{name: timed[name] for name in kept}
        )
    ]


def measure_times(
    subject: Subject,
    calls: Sequence[Inputs],
    *,
    shape: str,
    threads: int,
    repeats: int,
    warmup: int = 3,
    names: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    left_out: bool = False,
) -> list[ComparedRecord]:
    """How long each arm takes for some calls; arms take turns call by call.

    `left_out` adds why the arms that are missing are, which answers say as well.
    """
    one_shape = len({inputs["input_ids"].shape for inputs in calls}) == 1
    built = build_peers(subject.files, Setting(threads, one_shape), names=names)
    arms = {
        f"{name} {level:g}": [partial(answer, **inputs) for inputs in calls]
        for (name, level), answer in built.arms.items()
    }
    times = take_times(arms, repeats, warmup, threads, progress, None)
    over: dict[str, dict[str, list[float]]] = {arm: {} for arm in arms}
    for reference in REFERENCES:
        if f"{reference} 1" in arms:
            for result in compare_times(times, f"{reference} 1", threads):
                ratios = (result.speedup, result.low, result.high)
                over[result.arm][reference] = [round(ratio, 4) for ratio in ratios]
    rows = sum(len(inputs["input_ids"]) for inputs in calls)
    tokens = sum(inputs["input_ids"].size for inputs in calls) / rows
    joules = _joules(arms, rows, threads)
    found: list[ComparedRecord] = [
        PeerLatencyRecord(
            **subject.traced,
            arm=name,
            level=level,
            runtime=NAMED[name].runtime(),
            shape=shape,
            rows=rows,
            tokens=round(tokens, 1),
            threads=threads,
            waiting=os.environ.get("OMP_WAIT_POLICY", "default").lower(),
            repeats=repeats,
            median_ms=round(float(np.median(times[f"{name} {level:g}"])), 4),
            over=over[f"{name} {level:g}"],
            joules=joules.get(f"{name} {level:g}", ABSENT),
        )
        for name, level in built.arms
    ]
    return found + (_left_out(subject, built) if left_out else [])


def _joules(
    arms: Mapping[str, Sequence[Callable[[], object]]], rows: int, threads: int
) -> dict[str, float]:
    """Joules per row of each arm; none where the machine's counters can't be read."""
    found: dict[str, float] = {}
    if not read_counters():
        return found
    with using_threads(threads):
        for arm, calls in arms.items():
            joules = joules_per_call(partial(_run_all, calls))
            if joules is not None:
                found[arm] = round(joules / rows, 6)
    return found


def _run_all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
