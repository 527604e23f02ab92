"""Stages: one model of one method and one seed, trained or scored, then measured.

A stage is keyed by a hash of all that decides its weights, so a warm start is trained once and
shared by all that come from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion.backbones.encoder import Encoder, EncoderConfig
from apportion.backbones.hub import load_model, load_words
from apportion.baselines import BASELINES
from apportion.benchmark import count_parameters, time_budgets
from apportion.checkpoint import Checkpoint, has_checkpoint, load, save, weights_digest
from apportion.elastic import Elastic, plain_of
from apportion.evaluation import SWEEP, Outcome, evaluate, is_monotone, sweep
from apportion.prediction import time_predictions
from apportion.recipes import Recipe
from apportion.records import provenance
from apportion.scoring import SOURCES
from apportion.skipping import Skipping
from apportion.surgery import cut
from apportion.tasks import Split, Task, TaskSpec
from apportion.tasks.text import Text
from apportion.training import Tick, fit
from apportion.units import Allocation


@dataclass(frozen=True)
class Timing:
    """How a model of texts is timed; the defaults are the paper's for its own encoder.

    Padded to the whole length as the paper has it, grouped by length as people would run it, and,
    if asked for, one row at a time.
    """

    batch: int = 64
    rows: int = 2000
    repeats: int = 5
    single: bool = False
    forms: tuple[str, ...] = ("soft", "skip", "cut")
    predictions: bool = True  # also how much of the bare model's throughput `predict` keeps

    @property
    def protocols(self) -> tuple[str, ...]:
        """The ways to put rows together."""
        return ("padded", "grouped", *(["single"] if self.single else []))


@dataclass(frozen=True)
class Stage:
    """One model of one method and one seed: trained by a recipe, or the parent's with scores."""

    method: str
    task: TaskSpec
    model: Mapping[str, Any]
    seed: int
    budgets: tuple[float, ...]  # of the tables
    recipe: Recipe | None = None
    score: str | None = None
    baseline: str | None = None
    parent: Stage | None = None
    teacher: Stage | None = None
    only: float | None = None  # the one budget of a specialist
    latency: bool = False  # this is the model that is timed
    keep: int = 0  # units of each layer that scores leave, whatever they say
    sweep: bool = True  # measured at the sweep's budgets, and not only at those of the tables
    timing: Timing = Timing()
    weights: Path | None = None  # folder of the pretrained model, if not where its name says

    @property
    def key(self) -> str:
        """A hash of all that decides the stage's weights or scores."""
        return _digest(
            {
                "task": self.task.identity(),
                "model": dict(self.model),
                "seed": self.seed,
                "recipe": self.recipe and self.recipe.identity(),
                "score": self.score,
                "parent": self.parent and self.parent.key,
                "teacher": self.teacher and self.teacher.key,
                **({"baseline": self.baseline} if self.baseline else {}),
                **({"keep": self.keep} if self.keep else {}),
            }
        )

    @property
    def measures(self) -> str:
        """A hash of what is measured on it: a change of budgets measures again, trains not."""
        swept = SWEEP if self.sweep else ()
        return _digest({"budgets": self.budgets, "sweep": swept, "only": self.only, "v": 1})

    @property
    def has_gates(self) -> bool:
        """Whether its model has gates: learned ones, or set from scores."""
        return self.score is not None or (
            self.recipe is not None and self.recipe.objective != "dense"
        )

    @property
    def floor(self) -> int:
        """Units that each layer keeps at least."""
        return self.recipe.floor if self.recipe else self.keep

    def build_task(self) -> Task:
        """The task with its rows; a pretrained model brings its own words."""
        name = self.model.get("pretrained")
        return self.task.build(load_words(name, self.task.length, self.weights) if name else None)

    @property
    def timed_at(self) -> tuple[float, ...]:
        """The budgets at which it is timed."""
        return self.budgets if self.only is None else (self.only,)

    @property
    def protocols(self) -> tuple[str | None, ...]:
        """How its rows are put together when it is timed; where all are alike, there is one way."""
        return self.timing.protocols if isinstance(self.task, Text) else (None,)

    @property
    def names(self) -> dict[str, Any]:
        """What each of its records says of where it belongs."""
        return {
            "stage": self.key,
            "method": self.method,
            "data_seed": self.task.seed,
            "seed": self.seed,
            "only": self.only,
        }

    @property
    def label(self) -> str:
        """For people: method, budget, seeds."""
        only = "" if self.only is None else f" {self.only:.2f}"
        return f"{self.method}{only} · data {self.task.seed} · seed {self.seed}"


def is_done(stage: Stage, records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a stage's records are all there."""
    return any(
        r.get("kind") == "stage" and r["stage"] == stage.key and r["measures"] == stage.measures
        for r in records
    )


def checkpoint_folder(stage: Stage, runs: Path) -> Path:
    """Where a stage keeps its model."""
    return runs / f"{stage.method}-{stage.key}"


def has_model(stage: Stage, runs: Path) -> bool:
    """Whether a stage's model is there."""
    return has_checkpoint(checkpoint_folder(stage, runs))


def produce(
    stage: Stage,
    runs: Path,
    progress: Callable[[Tick], None] | None = None,
    task: Task | None = None,
) -> Checkpoint:
    """The stage's model: from its folder, or trained now (and first those that it comes from).

    All stages that it comes from have its task, so that is built once.
    """
    folder = checkpoint_folder(stage, runs)
    state = runs / f"{folder.name}.state"
    if has_checkpoint(folder):
        state.unlink(missing_ok=True)  # of a kill right after the checkpoint was saved
        loaded = load(folder)
        if task and loaded.notes["data"] != task.digest():
            raise ValueError(
                f"{folder} was trained on other rows than there are now: was the data changed? "
                "Choose another folder, or remove it to train again"
            )
        return loaded
    task = task or stage.build_task()
    parent = produce(stage.parent, runs, progress, task) if stage.parent else None
    start = parent.model if parent else new_model(stage, task)
    kept: Allocation | None = None
    model: nn.Module
    if stage.recipe is None:
        model, learned = _score(stage, start, task)
    else:
        if stage.recipe.objective != "dense" and not isinstance(start, Elastic):
            start = Elastic(start, length=task.length)
        elif stage.recipe.objective == "dense" and isinstance(start, Elastic):
            # A specialist: cut by its parent's gates at its own budget, then trained as it is.
            assert stage.parent and stage.only
            kept = start.allocation(stage.only, stage.parent.floor)
            start = cut(start.plain(), kept)
        teacher = produce(stage.teacher, runs, progress, task).model if stage.teacher else None
        fitted = fit(start, task, stage.recipe, stage.seed, teacher, state, progress=progress)
        model = fitted.model
        learned = {
            "epochs": stage.recipe.epochs,
            "best": asdict(fitted.best),
            "seconds": round(fitted.seconds, 1),
            "processes": fitted.processes,
        }
    notes = {
        "task": dict(task.spec),
        "classes": list(task.classes),
        "data": task.digest(),
        "method": stage.method,
        "seed": stage.seed,
        "recipes": [
            *(parent.notes["recipes"] if parent else []),
            *([stage.recipe.to_dict()] if stage.recipe else []),
        ],
        "training": {**learned, **provenance(threads=torch.get_num_threads())},
    }
    checkpoint = Checkpoint(model, notes, kept, task.words)
    save(checkpoint, folder)
    state.unlink(missing_ok=True)
    return checkpoint


def _score(stage: Stage, model: nn.Module, task: Task) -> tuple[Elastic, dict[str, Any]]:
    """A model whose gates open its units in the order of the stage's scores, and those."""
    assert stage.score is not None
    elastic = Elastic(plain_of(model), length=task.length)
    scored = SOURCES[stage.score](elastic, task, stage.seed)
    elastic.gates.order_by(scored.scores)
    scores = [float(f"{score:.6g}") for score in scored.scores.tolist()]
    return elastic, {"scores": scores, **scored.facts}


def new_model(stage: Stage, task: Task) -> nn.Module:
    """The model that a stage without a parent starts from."""
    if "pretrained" in stage.model:
        return load_model(stage.model["pretrained"], task.classes, stage.seed, stage.weights)
    return new_encoder(task, stage.model, stage.seed)


def new_encoder(task: Task, shape: Mapping[str, Any], seed: int) -> Encoder:
    """An untrained encoder for a task; the same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(
            EncoderConfig(task.vocabulary, task.length, len(task.classes), **dict(shape))
        )


def run_stage(
    stage: Stage, runs: Path, progress: Callable[[Tick], None] | None = None
) -> list[dict[str, Any]]:
    """Trains and measures one stage; the last record says that all of them are there."""
    if stage.baseline is not None:
        return _run_baseline(stage)
    task = stage.build_task()
    checkpoint = produce(stage, runs, progress, task)
    model = checkpoint.model
    if stage.score is not None:
        measured = _measure_scores(stage, checkpoint, task)
    elif isinstance(model, Elastic):
        measured = _measure_elastic(stage, model, task)
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
    }
    return [{**stage.names, **record} for record in (*measured, done)]


def _run_baseline(stage: Stage) -> list[dict[str, Any]]:
    """A method of another kind on the same rows, for the same table."""
    assert stage.baseline is not None
    task = stage.task.build()
    outcome, chosen = BASELINES[stage.baseline](task)
    point = {**_point("baseline", 1.0, outcome), "chosen": chosen}
    done = {**_end_of(stage, task), "training": None}
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


def _measure_scores(stage: Stage, checkpoint: Checkpoint, task: Task) -> list[dict[str, Any]]:
    """What a model keeps when the stage's scores choose its units."""
    model, training = checkpoint.model, checkpoint.notes["training"]
    records = [{"kind": "scores", **{k: v for k, v in training.items() if k in _OF_SCORES}}]
    for budget in stage.budgets:
        outcome = evaluate(model, task.test, budget, "hard", stage.floor)
        records.append(_point("hard", budget, outcome))
    return records


_OF_SCORES = ("scores", "passes", "rows", "seconds", "share_of_whole_passes")


def _measure_elastic(stage: Stage, model: Elastic, task: Task) -> list[dict[str, Any]]:
    """What a model keeps when its gates do: at its one budget, or at all of the sweep's."""
    if stage.only is not None:
        return [
            _point(form, stage.only, evaluate(model, task.test, stage.only, form, stage.floor))
            for form in ("soft", "hard")
        ]
    budgets = sorted({*(SWEEP if stage.sweep else ()), *stage.budgets, 1.0})
    points = sweep(model, task.test, budgets, floor=stage.floor)
    records = [_point(point.form, point.budget, point.outcome) for point in points]
    for budget in stage.budgets:
        outcome = evaluate(model, task.test, budget, "cut", stage.floor)
        records.append(_point("cut", budget, outcome))
    records.append({"kind": "monotone", "monotone": is_monotone(points)})
    with torch.no_grad():
        for budget in (*stage.budgets, 1.0):
            z = [round(value, 4) for value in model.gates(budget).tolist()]
            kept = model.allocation(budget, stage.floor).to_dict()
            records.append({"kind": "gates", "budget": budget, "z": z, "kept": kept})
    return records


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
    task = stage.build_task()
    model = produce(stage, runs, task=task).model
    assert isinstance(model, Elastic)
    how, floor = stage.timing, stage.floor
    if task.words is None:
        inputs, _ = task.test.batch(torch.arange(min(how.batch, len(task.test))))
        timed = time_budgets(model, [inputs], stage.timed_at, 41, 1, floor, progress=progress)
    else:
        timed = []
        rows = Split(*task.test.batch(torch.arange(min(how.rows, len(task.test))), padded=True))
        for protocol in stage.protocols:
            size = 1 if protocol == "single" else how.batch
            batches = [b for b, _ in rows.batches(size, padded=protocol != "grouped")]
            of_protocol = time_budgets(
                model, batches, stage.timed_at, how.repeats, 1, floor, how.forms, 1, progress
            )
            timed += [{**record, "protocol": protocol} for record in of_protocol]
    return [{**stage.names, **record, **provenance()} for record in timed]


def time_predictions_of(stage: Stage, runs: Path) -> list[dict[str, Any]]:
    """How much of the bare model's throughput predictions keep, at each budget of a text stage."""
    task = stage.build_task()
    model = produce(stage, runs, task=task).model
    assert isinstance(model, Elastic)
    skipping = Skipping(model, stage.floor)
    timed = [time_predictions(skipping.at(b), task, stage.timing.batch, b) for b in stage.timed_at]
    return [{**stage.names, **record, **provenance()} for record in timed]


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
