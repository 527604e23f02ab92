"""Measuring a stage: its model's accuracy at each budget, then its time, as records."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apportion.data.task import Split, Task
from apportion.elastic.checkpoint import Checkpoint, load, save, weights_digest
from apportion.elastic.elastic import Elastic, plain_of
from apportion.elastic.evaluation import (
    SWEEP,
    Outcome,
    Point,
    evaluate,
    is_monotone,
    sweep,
    swept_forms,
)
from apportion.method.allocation import allocate
from apportion.method.units import Allocation
from apportion.models.compute import count_parameters
from apportion.models.encoder import Encoder
from apportion.serving.prediction import time_predictions
from apportion.serving.skipping import Skipping
from apportion.serving.timing import (
    Arms,
    Timed,
    elastic_arms,
    time_arms,
    time_switching,
)
from apportion.study.baselines import BASELINES
from apportion.study.production import produce
from apportion.study.records import provenance
from apportion.study.stages import Stage, Timing
from apportion.training.progress import Tick, telling


def run_stage(
    stage: Stage, runs: Path, progress: Callable[[Tick], None] | None = None
) -> list[dict[str, Any]]:
    """Trains and measures one stage; the last record says that all of them are there."""
    started = time.monotonic()
    if stage.baseline is not None:
        return _run_baseline(stage, started)
    task = stage.build_task()
    checkpoint = produce(stage, runs, progress, task)
    task = stage.measured_on(task)
    model = checkpoint.model.to(stage.device)
    tell = telling(progress, "measuring")
    if stage.score is not None:
        measured = _measure_scores(stage, checkpoint, task, tell)
    elif isinstance(model, Elastic):
        measured = _measure_elastic(stage, model, task, tell)
    elif checkpoint.kept is not None:
        outcome = replace(evaluate(model, task.test), cost=checkpoint.kept.cost)
        measured = [_point("cut", stage.only or 1.0, outcome)]
    else:
        measured = [_point("dense", 1.0, evaluate(model, task.test))]
    done = {
        **_end_of(stage, task),
        "weights": weights_digest(checkpoint.model),
        "parameters": count_parameters(plain_of(checkpoint.model)),
        "training": checkpoint.notes["training"] if stage.recipe else None,
        "seconds": round(time.monotonic() - started, 1),  # measuring included
    }
    return [{**stage.names, **record} for record in (*measured, done)]


def _run_baseline(stage: Stage, started: float) -> list[dict[str, Any]]:
    """A method of another kind on the same rows, for the same table."""
    assert stage.baseline is not None
    task = stage.measured_on(stage.task.build())
    outcome, chosen = BASELINES[stage.baseline](task)
    point = {**_point("baseline", 1.0, outcome), "chosen": chosen}
    seconds = round(time.monotonic() - started, 1)
    done = {**_end_of(stage, task), "training": None, "seconds": seconds}
    return [{**stage.names, **record} for record in (point, done)]


def _end_of(stage: Stage, task: Task) -> dict[str, Any]:
    """What says that a stage's records are all there, and what they came from."""
    return {
        "kind": "stage",
        "measures": stage.measures,
        "parent": stage.parent and stage.parent.key,
        "teacher": stage.teacher and stage.teacher.key,
        "recipe": stage.recipe and stage.recipe.to_dict(),
        "score": stage.score,
        "data": task.digest(),
        "facts": dict(task.facts),
        **provenance(threads=torch.get_num_threads()),
    }


def _measure_scores(
    stage: Stage, checkpoint: Checkpoint, task: Task, tell: Callable[[int, int], None]
) -> list[dict[str, Any]]:
    """What a model keeps when the stage's scores choose its units."""
    model, training = checkpoint.model, checkpoint.notes["training"]
    assert isinstance(model, Elastic)
    scores = {"kind": "scores", **{k: v for k, v in training.items() if k in _OF_SCORES}}
    # Scores are an order of the units; half open, their gates mean nothing.
    forms = [form for form in swept_forms(model) if form != "soft"]
    points = sweep(model, task.test, budgets=stage.budgets, forms=forms, progress=tell)
    return [scores, *_points(points)]


_OF_SCORES = (
    "scores",
    "passes",
    "rows",
    "seconds",
    "repair_rows",
    "repair_held_out",
    "repair_weighting",
    "repair_share",
    "repair_ridges",
    "repair_seconds",
    "share_of_passes",
    "share_of_padded_passes",
)


_RANKED_AT = (0.25, 0.75)  # where the paper compares the rankings of the gates


def _measure_elastic(
    stage: Stage, model: Elastic, task: Task, tell: Callable[[int, int], None]
) -> list[dict[str, Any]]:
    """What a model keeps when its gates do: at its one budget, or at all of the sweep's."""
    if stage.only is not None:
        return _points(sweep(model, task.test, budgets=(stage.only,), progress=tell))
    budgets = sorted({*(SWEEP if stage.sweep else ()), *stage.budgets, 1.0})
    points = sweep(model, task.test, budgets=budgets, progress=tell)
    records = _points(points)
    if "cut" not in swept_forms(model):
        records += _points(
            sweep(model, task.test, budgets=stage.budgets, forms=("cut",), progress=tell)
        )
    records.append({"kind": "monotone", "monotone": is_monotone(points)})
    with torch.no_grad():
        for budget in sorted({*stage.budgets, *_RANKED_AT, 1.0}):
            # Enough digits to rank gates that hardly moved.
            z = [round(value, 8) for value in model.gates(budget).tolist()]
            # Where rankings are compared may lie below what the model was made for.
            kept = allocate(
                model.gates.scores(budget), model.units, budget=budget, floor=model.floor
            )
            facts = {"kind": "gates", "budget": budget, "z": z, "kept": kept.to_dict()}
            records.append(facts)
    return records


def _points(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [_point(point.form, point.budget, point.outcome) for point in points]


def _point(form: str, budget: float, outcome: Outcome) -> dict[str, Any]:
    return {
        "kind": "point",
        "form": form,
        "budget": budget,
        "split": "test",
        "rows": outcome.rows,
        "accuracy": round(outcome.accuracy, 6),
        "loss": round(outcome.loss, 6),
        "cost": round(outcome.cost, 6),
    }


def time_stage(
    stage: Stage, runs: Path, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Latency of a stage's model at each of its budgets, one thread, all arms side by side.

    Tasks of texts go by their `Timing`. Others, whose rows are all alike, take one batch many
    times.
    """
    started = time.monotonic()
    task = stage.build_task()
    arms = _arms(stage, runs, task)
    how = stage.timing
    timed: list[dict[str, Any]] = []
    if task.words is None:
        inputs, _ = task.test.batch(torch.arange(min(how.batch, len(task.test))))
        ways: dict[str | None, list[dict[str, Tensor]]] = {None: [inputs]}
        repeats, warmup = 41, 3
    else:
        rows = task.test.take(torch.arange(min(how.rows, len(task.test))))
        ways = {protocol: _calls(rows, protocol, how) for protocol in stage.protocols}
        repeats, warmup = 5, 1
    repeats = how.repeats or repeats
    warmup = warmup if how.warmup is None else how.warmup
    for protocol, batches in ways.items():
        of_protocol = time_arms(arms, batches, repeats, 1, warmup, progress, stage.device)
        named = {} if protocol is None else {"protocol": protocol}
        timed += [{**record, **named} for record in of_protocol]
    model = produce(stage, runs, task=task).model
    if isinstance(model, Elastic) and model.form == "nested":
        timed.append(time_switching(model, stage.timed_at))
    timed.append({"kind": "timing", "seconds": round(time.monotonic() - started, 1)})
    return [{**stage.names, **record, **provenance()} for record in timed]


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
    model = produce(stage, runs, task=task).model.to(stage.device)
    if isinstance(model, Elastic):
        reload = None if isinstance(model.model, Encoder) else _reloaded
        forms = stage.timing.forms
        if forms is None and task.words is not None and model.form != "nested":
            forms = _OF_TEXTS
        return elastic_arms(model, stage.timed_at, forms=forms, reload=reload)
    assert stage.parent and stage.only
    scored = produce(stage.parent, runs, task=task).model
    assert isinstance(scored, Elastic)
    whole = scored.plain()
    return {("dense", 1.0): Timed(whole, whole), ("cut", stage.only): Timed(model, model)}


_OF_TEXTS = ("fused", "soft", "skip", "cut")


def time_predictions_of(stage: Stage, runs: Path) -> list[dict[str, Any]]:
    """How much of the bare model's throughput predictions keep, at each budget of a text stage."""
    task = stage.build_task()
    model = produce(stage, runs, task=task).model
    assert isinstance(model, Elastic)
    skipping = Skipping(model)
    timed = [time_predictions(skipping.at(b), task, stage.timing.batch, b) for b in stage.timed_at]
    return [{**stage.names, **record, **provenance()} for record in timed]


def _reloaded(smaller: nn.Module, kept: Allocation) -> nn.Module:
    """A cut model after it was saved and loaded, as people would run it."""
    with tempfile.TemporaryDirectory() as place:
        save(Checkpoint(smaller, {}, kept), Path(place) / "cut")
        return load(Path(place) / "cut").model
