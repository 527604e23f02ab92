"""Measuring a stage: its model's accuracy at each budget, then its time, as records."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apportion.data.task import Split, Task
from apportion.elastic.checkpoint import Checkpoint, load, save, weights_digest
from apportion.elastic.elastic import Elastic, plain_of
from apportion.elastic.evaluation import Outcome, Point, evaluate, is_monotone, sweep, swept_forms
from apportion.method.units import Allocation
from apportion.models.compute import count_parameters
from apportion.models.encoder import Encoder
from apportion.serving.bench.calibration import check_forecast
from apportion.serving.bench.switching import time_switching
from apportion.serving.bench.throughput import time_predictions
from apportion.serving.bench.timing import Arms, Timed, elastic_arms, time_arms
from apportion.serving.runtime.arrays import on_arrays
from apportion.serving.runtime.session import Runtime
from apportion.serving.runtime.skipping import Skipping
from apportion.study import records
from apportion.study.answers import (
    Answers,
    Said,
    answers_file,
    check_same_rows,
    dense_of,
    has_answers,
    noting,
    read_file,
    rows_digest,
    smallest_integer,
)
from apportion.study.baselines import BASELINES
from apportion.study.production import produce
from apportion.study.protocols import Timing
from apportion.study.stages import BaselineStage, ScoredStage, Stage, TrainedStage
from apportion.study.word_records import words_read
from apportion.training.progress import Tick, telling


def run_stage(
    stage: Stage,
    runs: Path,
    *,
    progress: Callable[[Tick], None] | None = None,
    results: Path | None = None,
) -> list[dict[str, Any]]:
    """Trains and measures one stage; the last record says that all of them are there.

    Answers to each row, where the stage asks for them, are kept beside the file of results.
    """
    started = time.monotonic()
    measured: Sequence[records.Record]
    made: dict[str, Any] = {"training": None}
    if isinstance(stage, BaselineStage):
        task = stage.measured_on(stage.task.build())
        noted, said = _noted(stage, task)
        outcome, chosen = BASELINES[stage.baseline](noted)
        measured = [_point(stage, "baseline", 1.0, outcome, chosen=chosen)]
    else:
        trained_on = stage.build_task()
        checkpoint = produce(stage, runs, progress=progress, task=trained_on)
        task = stage.measured_on(trained_on)
        noted, said = _noted(stage, task)
        measured = _measure(stage, checkpoint, noted, partial(telling(progress), "measuring"))
        made["weights"] = weights_digest(checkpoint.model)
        measured = [*measured, *words_read(stage, checkpoint, task, weights=made["weights"])]
        made["parameters"] = count_parameters(plain_of(checkpoint.model))
        if isinstance(stage, TrainedStage):
            made["training"] = checkpoint.notes["training"]
    if stage.answers:
        dense = _dense_answers(stage, task, runs=runs, results=results)
        found = _answers(stage, task, measured, said)
        measured = [_judged_by_rows(record, found, dense) for record in measured]
        if results is not None:
            found.write(answers_file(stage, results))
    done = records.StageRecord(
        **stage.names,
        measures=stage.measures,
        parent=stage.parent.key if stage.parent else None,
        teacher=stage.teacher.key if stage.teacher else None,
        recipe=stage.recipe.to_dict() if stage.recipe else None,
        score=stage.score,
        data=task.digest(),
        facts=dict(task.facts),
        seconds=round(time.monotonic() - started, 1),
        **made,
        **records.provenance(threads=torch.get_num_threads()),
    )
    return [record.to_dict() for record in (*measured, done)]


def _noted(stage: Stage, task: Task) -> tuple[Task, list[Said]]:
    """The task with test rows that note what is said of them, where the stage keeps answers."""
    test, said = noting(task.test) if stage.answers else (task.test, [])
    return replace(task, test=test), said


def _answers(
    stage: Stage, task: Task, measured: Sequence[records.Record], said: Sequence[Said]
) -> Answers:
    """The answers behind some points: each was one pass over the rows, in the order of points."""
    points = [record for record in measured if isinstance(record, records.PointRecord)]
    labels = task.test.labels.numpy().astype(smallest_integer(len(task.classes)))
    by_point = {(p.form, p.budget): answer for p, answer in zip(points, said, strict=True)}
    found = Answers(stage.measures, rows_digest(task.test), labels, by_point)
    for p in points:
        assert p.accuracy == round(float(found.right(p.form, p.budget).mean()), 6), p
    return found


def _judged_by_rows(
    record: records.Record, answers: Answers, dense: Answers | None
) -> records.Record:
    """A point with what only the answers to each row can tell."""
    if not isinstance(record, records.PointRecord):
        return record
    point = record.form, record.budget
    record = replace(record, ece=round(answers.calibration_error(*point), 6))
    if dense is None:
        return record
    agreement = answers.said[point].agreement(dense.said["dense", 1.0])
    return replace(record, agreement=round(agreement, 6))


def _dense_answers(stage: Stage, task: Task, *, runs: Path, results: Path | None) -> Answers | None:
    """The answers of a stage's dense model: read, or made while another process measures it."""
    dense = dense_of(stage)
    if dense is None:
        return None
    if results is not None and has_answers(dense, results):
        answers = read_file(answers_file(dense, results))
        check_same_rows(answers.rows, rows_digest(task.test))
        return answers
    noted, said = _noted(dense, task)
    measured = _measure(dense, produce(dense, runs), noted, lambda done, of: None)
    return _answers(dense, task, measured, said)


def _measure(
    stage: Stage, checkpoint: Checkpoint, task: Task, tell: Callable[[int, int], None]
) -> Sequence[records.Record]:
    """What a stage's model keeps: at its budgets if it has any, else as it is."""
    model = checkpoint.model.to(stage.device)
    if isinstance(stage, ScoredStage):
        return _measure_scores(stage, checkpoint, task, tell)
    if stage.has_gates:
        return _measure_gates(stage, checkpoint.require_elastic(), task, tell)
    outcome = evaluate(model, task.test)
    if checkpoint.kept is None:
        return [_point(stage, "dense", 1.0, outcome)]
    return [_point(stage, "cut", stage.only or 1.0, replace(outcome, cost=checkpoint.kept.cost))]


def _measure_scores(
    stage: Stage, checkpoint: Checkpoint, task: Task, tell: Callable[[int, int], None]
) -> list[records.Record]:
    """What a model keeps when the stage's scores choose its units."""
    model, made = checkpoint.require_elastic(), checkpoint.notes["training"]
    # Its provenance stands in the stage's last record; a fact that has no field is an error.
    facts = {k: v for k, v in made.items() if k not in records.provenance(threads=0)}
    # Scores are an order of the units; half open, their gates mean nothing.
    forms = [form for form in swept_forms(model) if form != "soft"]
    points = sweep(model, task.test, budgets=stage.budgets, forms=forms, progress=tell)
    return [records.ScoresRecord(**stage.names, **facts), *_points(stage, points)]


_RANKED_AT = (0.25, 0.75)  # where the paper compares the rankings of the gates


def _measure_gates(
    stage: Stage, model: Elastic, task: Task, tell: Callable[[int, int], None]
) -> list[records.Record]:
    """What a model keeps when its gates do: at its one budget, or at all of the sweep's."""
    if stage.only is not None:
        return _points(stage, sweep(model, task.test, budgets=(stage.only,), progress=tell))
    budgets = sorted({*stage.swept_at, *stage.budgets, 1.0})
    points = sweep(model, task.test, budgets=budgets, progress=tell)
    found = _points(stage, points)
    if "cut" not in swept_forms(model):
        cuts = sweep(model, task.test, budgets=stage.budgets, forms=("cut",), progress=tell)
        found += _points(stage, cuts)
    found.append(records.MonotoneRecord(**stage.names, monotone=is_monotone(points)))
    with torch.no_grad():
        for budget in sorted({*stage.budgets, *_RANKED_AT, 1.0}):
            found.append(_gates_at(stage, model, budget))
    return found


def _gates_at(stage: Stage, model: Elastic, budget: float) -> records.GatesRecord:
    """The gates at a budget, and the units that it keeps."""
    # Enough digits to rank gates that hardly moved.
    z = [round(value, 8) for value in model.gates(budget).tolist()]
    # Where rankings are compared may lie below what the model was made for.
    kept = model.bought(budget, model.floor)
    return records.GatesRecord(**stage.names, budget=budget, z=z, kept=kept.to_dict())


def _points(stage: Stage, points: Sequence[Point]) -> list[records.Record]:
    return [_point(stage, point.form, point.budget, point.outcome) for point in points]


def _point(
    stage: Stage, form: str, budget: float, outcome: Outcome, chosen: Any = records.ABSENT
) -> records.PointRecord:
    return records.PointRecord(
        **stage.names,
        form=form,
        budget=budget,
        split="test",
        rows=outcome.rows,
        accuracy=round(outcome.accuracy, 6),
        loss=round(outcome.loss, 6),
        cost=round(outcome.cost, 6),
        chosen=chosen,
    )


def time_stage(
    stage: Stage, runs: Path, *, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Latency of a stage's model at each of its budgets, one thread, all arms side by side.

    Tasks of texts go by their `Timing`. Others, whose rows are all alike, take one batch many
    times.
    """
    started = time.monotonic()
    task = stage.build_task()
    arms = _arms(stage, runs, task)
    how = stage.timing
    timed: list[Mapping[str, Any]] = []
    if task.words is None:
        inputs, _ = task.test.batch(torch.arange(min(how.batch, len(task.test))))
        ways: dict[str | None, list[dict[str, Tensor]]] = {None: [inputs]}
        repeats, warmup = 41, 3
    else:
        rows = task.test.take(torch.arange(min(how.rows, len(task.test))))
        ways = {protocol: _calls(rows, protocol, how) for protocol in how.protocols(stage.task)}
        repeats, warmup = 5, 1
    repeats = how.repeats or repeats
    warmup = warmup if how.warmup is None else how.warmup
    for protocol, batches in ways.items():
        latencies = time_arms(
            arms,
            batches,
            repeats=repeats,
            warmup=warmup,
            threads=1,
            device=stage.device,
            progress=progress,
        )
        named = {} if protocol is None else {"protocol": protocol}
        timed += [{**latency, **named} for latency in latencies]
    if stage.form == "nested":
        model = produce(stage, runs, task=task).require_elastic()
        timed.append(time_switching(model, stage.timed_at))
    timed.append({"kind": "timing", "seconds": round(time.monotonic() - started, 1)})
    return _traced(stage, timed)


def _traced(stage: Stage, measured: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was timed, as records of a stage with their provenance."""
    named = ({**stage.names, **values, **records.provenance()} for values in measured)
    return [records.record_of(values).to_dict() for values in named]


def _calls(rows: Split, protocol: str | None, how: Timing) -> list[dict[str, Tensor]]:
    """The inputs of each call, some rows together or one by one."""
    alone = protocol in ("single", "short")
    calls = rows.batches(1 if alone else how.batch, padded=protocol != "grouped")
    if protocol != "short":
        return [inputs for inputs, _ in calls]
    return [
        {name: values[:, : how.short] for name, values in inputs.items()} for inputs, _ in calls
    ]


def _arms(stage: Stage, runs: Path, task: Task) -> Arms:
    """What is timed: an elastic model at each budget, or a specialist beside what it was cut of."""
    made = produce(stage, runs, task=task)
    if stage.has_gates:
        model = made.require_elastic().to(stage.device)
        reload = None if isinstance(model.model, Encoder) else _reloaded
        forms = stage.timing.forms
        if forms is None and task.words is not None and stage.form != "nested":
            forms = _OF_TEXTS
        return elastic_arms(model, stage.timed_at, forms=forms, reload=reload)
    assert stage.parent and stage.only
    whole, specialist = produce(stage.parent, runs, task=task).require_elastic().plain(), made.model
    return {("dense", 1.0): Timed(whole, whole), ("cut", stage.only): Timed(specialist, specialist)}


_OF_TEXTS = ("fused", "soft", "skip", "cut")


def time_predictions_of(stage: Stage, runs: Path) -> list[dict[str, Any]]:
    """How much of the bare model's throughput predictions keep, at each budget of a text stage."""
    task = stage.build_task()
    skipping = Skipping(produce(stage, runs, task=task).require_elastic())
    return _traced(
        stage,
        [
            time_predictions(
                on_arrays(skipping.at(budget)), task, batch=stage.timing.batch, budget=budget
            )
            for budget in stage.timed_at
        ],
    )


def time_forecast(
    runtime: Runtime, *, repeats: int = 30, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """How well the forecast of a folder foretells calls on this machine, as records."""
    digest = runtime.identity["weights"][:16]
    names = {"stage": digest, "method": "forecast", "data_seed": 0, "seed": 0, "only": None}
    checks = check_forecast(runtime, repeats=repeats, progress=progress)
    named = ({**names, **values, **records.provenance()} for values in checks)
    return [records.record_of(values).to_dict() for values in named]


def _reloaded(smaller: nn.Module, kept: Allocation) -> nn.Module:
    """A cut model after it was saved and loaded, as people would run it."""
    with tempfile.TemporaryDirectory() as place:
        save(Checkpoint(smaller, {}, kept), Path(place) / "cut")
        return load(Path(place) / "cut").model
