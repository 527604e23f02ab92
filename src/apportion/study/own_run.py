"""One's own run: a trained or converted checkpoint put to work, and measured beside others.

RUN/checkpoint/             what `train` or `convert` wrote
RUN/onnx/                   its one int8 file, with forecast.json and certificate.json
RUN/peers/                  its dense model as others would run it
RUN/results/measured.jsonl  what was measured, beside the records of the training

What is there is not made again, so a killed run goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from apportion.data.task import Task
from apportion.elastic.checkpoint import Checkpoint, load, weights_digest
from apportion.files import holding
from apportion.serving.bench.calibration import calibrate
from apportion.serving.bench.peer_files import PeerFiles
from apportion.serving.bench.peers import NAMED, Setting, build_peers
from apportion.serving.bench.timing import compare_times, take_times
from apportion.serving.guarantees.certificate import Certificate
from apportion.serving.guarantees.certifying import certify, texts_needed
from apportion.serving.runtime.exported import is_export
from apportion.serving.runtime.exporting import export
from apportion.serving.runtime.prediction import softmax
from apportion.serving.runtime.session import Runtime
from apportion.study import records
from apportion.study.baselines import BagOfWords, fit_bag_of_words
from apportion.study.experiment import read_experiment
from apportion.study.peer_measuring import answer_rows
from apportion.study.peer_records import PeerLatencyRecord
from apportion.study.production import task_of_checkpoint
from apportion.study.records import provenance
from apportion.study.run_records import ChangedTextRecord, RunAnswersRecord
from apportion.study.stages import checkpoint_folder, has_model

OURS, DENSE, INT8, WORDS = "file-int8", "torch", "onnxruntime-int8", "tfidf"
ONE_TEXT = "1 x text"  # the shape that is timed: one text at a time
CERTIFICATE = "certificate.json"
_MEASURED = "measured"
_BATCH = 32
_TIMED, _REPEATS = 32, 7  # texts, and turns of all arms
_CHANGED = 12  # texts that are kept as examples
Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much
Arm = tuple[str, float]  # name and level


@dataclass(frozen=True)
class OwnRun:
    """What is known of a run: its file's facts, what was measured, and its certificate."""

    folder: Path
    facts: Mapping[str, Any]
    measured: Sequence[Mapping[str, Any]]
    certificate: Certificate | None

    def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
        """The records of a kind, in their order."""
        return [record for record in self.measured if record["kind"] == kind]


@dataclass(frozen=True)
class Effort:
    """How long measuring may take, and how much is promised."""

    seconds: float = 30.0  # of the calibration
    rows: int = 3000  # texts of the certificate, at most
    timed: int = 512  # of them, for its speed
    disagree_at_most: float = 0.01
    threads: int = 1


def measure_run(
    folder: Path,
    *,
    texts: Sequence[str] = (),
    data: Path | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> OwnRun:
    """Exports, measures, calibrates and certifies a run, as far as that was not done before.

    `texts` without labels, none of them trained or tested on, are what is certified; without
    enough of them there is no certificate. `data` is the folder of its rows, if that moved.
    """
    effort, tell = effort or Effort(), progress or (lambda what, done, of: None)
    with holding(folder / "onnx.measuring"):
        checkpoint = load(folder / "checkpoint")
        task = task_of_checkpoint(checkpoint, data)
        weights = weights_digest(checkpoint.model)
        if task.words is None:
            raise ValueError(f"{folder} is no run of texts, so there is nothing to measure it with")
        _export(checkpoint, folder / "onnx", weights, task, tell)
        file = records_of(folder)
        if not _is_measured(records.read(file), weights):
            dense = _dense_model(folder)
            _measure(folder, checkpoint, dense, task=task, threads=effort.threads, tell=tell)
        runtime = Runtime(folder / "onnx", threads=effort.threads)
        _calibrate(runtime, effort.seconds, tell)
        _certify(runtime, texts, effort, tell)
    return read_run(folder)


def read_run(folder: Path) -> OwnRun:
    """What is known of a run by now; what was measured of other weights is left out."""
    onnx = folder / "onnx"
    if not is_export(onnx):
        raise ValueError(f"{folder} was not measured yet: `apportion report {folder} --measure`")
    runtime = Runtime(onnx)
    # The training noted which words are read; it has a file of its own.
    files = sorted(records_of(folder).parent.glob("*.jsonl"))
    kept = [r for file in files for r in records.read(file) if r.get("kind") != "stage"]
    measured = [r for r in kept if r.get("weights") == runtime.facts["weights"]]
    certificate = None
    if (onnx / CERTIFICATE).is_file():
        certificate = Certificate.load(onnx / CERTIFICATE)
        certificate.check(runtime.identity)
    return OwnRun(folder, runtime.facts, measured, certificate)


def records_of(folder: Path) -> Path:
    """Where a run keeps what was measured."""
    return folder / "results" / f"{_MEASURED}.jsonl"


def _is_measured(have: Sequence[Mapping[str, Any]], weights: str) -> bool:
    kinds = {r["kind"] for r in have if r.get("weights") == weights}
    return {"run_answers", "peer_latency"} <= kinds


def _export(checkpoint: Checkpoint, folder: Path, weights: str, task: Task, tell: Progress) -> None:
    if is_export(folder) and Runtime(folder).facts["weights"] == weights:
        return
    tell("export", 0, 1)
    export(checkpoint, folder, texts=list(task.train.texts or ()), int8=True)
    tell("export", 1, 1)


def _dense_model(folder: Path) -> nn.Module | None:
    """The fine-tuned model that the run's checkpoint comes from, where it is still there."""
    file = folder / "experiment.toml"
    if not file.is_file():
        return None
    stages = read_experiment(file).stages_of("dense")
    if not stages or not has_model(stages[0], folder / "stages"):
        return None
    return load(checkpoint_folder(stages[0], folder / "stages")).plain


def _measure(
    folder: Path,
    checkpoint: Checkpoint,
    dense: nn.Module | None,
    *,
    task: Task,
    threads: int,
    tell: Progress,
) -> None:
    """Answers and times of all arms; their records are written together."""
    tell("peers", 0, 1)
    train = list(task.train.texts or ())
    files = PeerFiles(checkpoint, folder / "peers", train, dense, folder / "onnx")
    built = build_peers(files, Setting(threads), names=(DENSE, INT8, OURS))
    words = _bag_of_words(task)
    traced = {"subject": task.name, "weights": weights_digest(checkpoint.model), **provenance()}
    assert task.words is not None
    encoded, texts = task.words.encode(task.test.texts or ()), list(task.test.texts or ())
    logits: dict[Arm, NDArray[Any]] = {}
    for done, (arm, answer) in enumerate(built.arms.items()):
        tell("answers", done, len(built.arms))
        logits[arm] = answer_rows(answer, task.words, encoded, batch=_BATCH)
    if words is not None:
        logits[WORDS, 1.0] = np.log(np.maximum(words(texts), 1e-12))
    labels = task.test.labels.numpy()
    answers = [
        RunAnswersRecord(**traced, arm=name, level=level, runtime=_runtime(name), **compared)
        for (name, level), compared in _beside_dense(logits, labels).items()
    ]
    calls = [
        {name: values.astype(np.int64) for name, values in task.words.pad_arrays([ids]).items()}
        for ids in encoded[:_TIMED]
    ]
    arms: dict[Arm, list[Callable[[], object]]] = {
        arm: [partial(answer, **inputs) for inputs in calls] for arm, answer in built.arms.items()
    }
    if words is not None:
        arms[WORDS, 1.0] = [partial(words, [text]) for text in texts[:_TIMED]]
    tokens = sum(inputs["input_ids"].size for inputs in calls) / len(calls)
    times = _times(arms, threads, partial(tell, "times"))
    latencies = [
        PeerLatencyRecord(
            **traced,
            arm=name,
            level=level,
            runtime=_runtime(name),
            shape=ONE_TEXT,
            rows=len(calls),
            tokens=round(tokens, 1),
            threads=threads,
            waiting="default",
            repeats=_REPEATS,
            median_ms=median,
            over=over,
        )
        for (name, level), (median, over) in times.items()
    ]
    changed = _changed(logits, task)
    found = [*answers, *latencies, *(ChangedTextRecord(**traced, **one) for one in changed)]
    records.append(records_of(folder), *(record.to_dict() for record in found))


def _bag_of_words(task: Task) -> BagOfWords | None:
    try:
        return fit_bag_of_words(task)
    except ValueError:  # scikit-learn is not installed, or there are no words
        return None


def _runtime(arm: str) -> str:
    return f"scikit-learn {version('scikit-learn')}" if arm == WORDS else NAMED[arm].runtime()


def _beside_dense(
    logits: Mapping[Arm, NDArray[Any]], labels: NDArray[Any]
) -> dict[Arm, dict[str, Any]]:
    """How each arm does, and where it differs from the dense model."""
    said = {arm: own.argmax(-1) for arm, own in logits.items()}
    dense = said[DENSE, 1.0]
    right = dense == labels
    return {
        arm: {
            "rows": len(labels),
            "accuracy": round(float((own == labels).mean()), 6),
            "agreement": round(float((own == dense).mean()), 6),
            "gained": int(((own == labels) & ~right).sum()),
            "lost": int(((own != labels) & right).sum()),
        }
        for arm, own in said.items()
    }


def _times(
    arms: Mapping[Arm, Sequence[Callable[[], object]]],
    threads: int,
    progress: Callable[[int, int], None],
) -> dict[Arm, tuple[float, dict[str, list[float]]]]:
    """Milliseconds for all texts of a turn, one at a time, and speed over the dense models."""
    named = {f"{name} {level:g}": (name, level) for name, level in arms}
    calls = {word: arms[arm] for word, arm in named.items()}
    taken = take_times(calls, _REPEATS, 1, threads, progress, None)
    over: dict[Arm, dict[str, list[float]]] = {arm: {} for arm in arms}
    for reference in (DENSE, INT8):
        if (reference, 1.0) in arms:
            for result in compare_times(taken, f"{reference} 1", threads):
                ratios = (result.speedup, result.low, result.high)
                over[named[result.arm]][reference] = [round(ratio, 4) for ratio in ratios]
    return {
        arm: (round(float(np.median(taken[word])), 4), over[arm]) for word, arm in named.items()
    }


def _changed(logits: Mapping[Arm, NDArray[Any]], task: Task) -> list[dict[str, Any]]:
    """Some test texts whose label changes between levels, those that change latest first."""
    levels = sorted(level for name, level in logits if name == OURS)
    likely = np.stack([softmax(logits[OURS, level]) for level in levels])  # levels, rows, classes
    said = likely.argmax(-1)
    differs = said != said[-1]
    latest = np.where(differs.any(0), len(levels) - 1 - differs[::-1].argmax(0), -1)
    order = np.argsort(-latest, kind="stable")[:_CHANGED]
    classes, texts = task.classes, task.test.texts or ()
    return [
        {
            "text": texts[row],
            "label": classes[int(task.test.labels[row])],
            "answers": {
                f"{level:g}": [classes[int(said[n, row])], round(float(likely[n, row].max()), 4)]
                for n, level in enumerate(levels)
            },
        }
        for row in map(int, order)
        if latest[row] >= 0
    ]


def _calibrate(runtime: Runtime, seconds: float, tell: Progress) -> None:
    try:
        _ = runtime.forecast
        return
    except ValueError:  # there is none, or it is of another machine
        pass
    try:
        calibrate(runtime, seconds=seconds, progress=partial(tell, "calibration"))
    except ValueError as error:  # a busy machine: all else is still worth having
        tell(f"no calibration: {error}", 1, 1)


def _certify(runtime: Runtime, texts: Sequence[str], effort: Effort, tell: Progress) -> None:
    path = Path(runtime.folder) / CERTIFICATE
    try:
        Certificate.load(path).check(runtime.identity)
        return
    except ValueError:  # there is none, or it is of other weights
        pass
    confidence = 0.95
    if len(set(texts)) < texts_needed(effort.disagree_at_most, 1.0 - confidence):
        return
    certify(
        runtime,
        texts,
        disagree_at_most=effort.disagree_at_most,
        confidence=confidence,
        rows=effort.rows,
        timed=effort.timed,
        threads=effort.threads,
        progress=lambda what, done, of: tell(f"certificate: {what}", done, of),
    ).save(path)
