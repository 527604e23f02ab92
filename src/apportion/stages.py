"""Stages: one model of one method and one seed, trained or scored, then measured.

A stage is keyed by a hash of all that decides its weights, so a warm start is trained once and
shared by all that come from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion.allocation import allocate
from apportion.backbones.encoder import Encoder, EncoderConfig
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
from apportion.tasks import Split, Task, TaskSpec
from apportion.tasks.text import Text
from apportion.training import Tick, fit

_BATCH, _TIMED = 64, 2000  # rows in a timed call and in all, as in the paper


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
    only: float | None = None  # the one budget of a static specialist
    latency: bool = False  # this is the model that is timed

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
            }
        )

    @property
    def measures(self) -> str:
        """A hash of what is measured on it: a change of budgets measures again, trains not."""
        return _digest({"budgets": self.budgets, "sweep": SWEEP, "only": self.only, "v": 1})

    @property
    def timed_at(self) -> tuple[float, ...]:
        """The budgets at which it is timed."""
        return self.budgets if self.only is None else (self.only,)

    @property
    def protocols(self) -> tuple[str | None, ...]:
        """How its rows are put together when it is timed; where all are alike, there is one way."""
        return ("padded", "grouped") if isinstance(self.task, Text) else (None,)

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
    """Whether a stage's model is there, or will come from a parent whose model is."""
    if stage.recipe is None:
        assert stage.parent is not None, "a baseline has no model, and nothing comes from it"
        return has_model(stage.parent, runs)
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
    task = task or stage.task.build()
    parent = produce(stage.parent, runs, progress, task) if stage.parent else None
    if stage.recipe is None:
        assert parent is not None
        return parent
    teacher = produce(stage.teacher, runs, progress, task).model if stage.teacher else None
    start = parent.model if parent else new_encoder(task, stage.model, stage.seed)
    if stage.recipe.objective != "dense" and not isinstance(start, Elastic):
        start = Elastic(start, length=task.length)
    fitted = fit(start, task, stage.recipe, stage.seed, teacher, state, progress=progress)
    notes = {
        "task": dict(task.spec),
        "classes": list(task.classes),
        "data": task.digest(),
        "method": stage.method,
        "seed": stage.seed,
        "recipes": [
            *(parent.notes["recipes"] if parent else []),
            stage.recipe.to_dict(),
        ],
        "training": {
            "epochs": stage.recipe.epochs,
            "best": asdict(fitted.best),
            "seconds": round(fitted.seconds, 1),
            "processes": fitted.processes,
            **provenance(threads=torch.get_num_threads()),
        },
    }
    checkpoint = Checkpoint(fitted.model, notes, words=task.words)
    save(checkpoint, folder)
    state.unlink(missing_ok=True)
    return checkpoint


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
    task = stage.task.build()
    checkpoint = produce(stage, runs, progress, task)
    model = checkpoint.model
    if stage.score is not None:
        measured = _measure_scores(stage, model, task)
    elif isinstance(model, Elastic):
        measured = _measure_elastic(stage, model, task)
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


def _measure_scores(stage: Stage, model: nn.Module, task: Task) -> list[dict[str, Any]]:
    """What a model keeps when the stage's scores choose its units."""
    assert stage.score is not None
    elastic = Elastic(plain_of(model), length=task.length)
    scores = SOURCES[stage.score](elastic, task, stage.seed)
    records = [{"kind": "scores", "scores": [round(score, 6) for score in scores.tolist()]}]
    for budget in stage.budgets:
        allocation = allocate(scores, elastic.units, budget)
        outcome = evaluate(elastic, task.test, allocation=allocation, form="hard")
        records.append(_point("hard", budget, outcome))
    return records


def _measure_elastic(stage: Stage, model: Elastic, task: Task) -> list[dict[str, Any]]:
    """What a model keeps when its gates do: at its one budget, or at all of the sweep's."""
    assert stage.recipe is not None
    floor = stage.recipe.floor
    if stage.only is not None:
        return [
            _point(form, stage.only, evaluate(model, task.test, stage.only, form, floor))
            for form in ("soft", "hard")
        ]
    points = sweep(model, task.test, floor=floor)
    records = [_point(point.form, point.budget, point.outcome) for point in points]
    for budget in stage.budgets:
        records.append(_point("cut", budget, evaluate(model, task.test, budget, "cut", floor)))
    records.append({"kind": "monotone", "monotone": is_monotone(points)})
    with torch.no_grad():
        for budget in (*stage.budgets, 1.0):
            z = [round(value, 4) for value in model.gates(budget).tolist()]
            kept = model.allocation(budget, floor).to_dict()
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

    Tasks of texts go by the paper's protocol, 2,000 test rows five times, padded to the whole
    length as the paper has them and grouped by length as people would run them. Others, whose
    rows are all alike, take one batch many times.
    """
    task = stage.task.build()
    model = produce(stage, runs, task=task).model
    assert isinstance(model, Elastic) and stage.recipe
    floor = stage.recipe.floor
    if task.words is None:
        inputs, _ = task.test.batch(torch.arange(min(_BATCH, len(task.test))))
        timed = time_budgets(model, [inputs], stage.timed_at, 41, 1, floor, progress=progress)
    else:
        timed = []
        rows = Split(*task.test.batch(torch.arange(min(_TIMED, len(task.test))), padded=True))
        for protocol in stage.protocols:
            batches = [b for b, _ in rows.batches(_BATCH, padded=protocol == "padded")]
            of_protocol = time_budgets(
                model, batches, stage.timed_at, 5, 1, floor, ("soft", "skip", "cut"), 1, progress
            )
            timed += [{**record, "protocol": protocol} for record in of_protocol]
    return [{**stage.names, **record, **provenance()} for record in timed]


def time_predictions_of(stage: Stage, runs: Path) -> list[dict[str, Any]]:
    """How much of the bare model's throughput predictions keep, at each budget of a text stage."""
    task = stage.task.build()
    model = produce(stage, runs, task=task).model
    assert isinstance(model, Elastic) and stage.recipe
    skipping = Skipping(model, stage.recipe.floor)
    timed = [time_predictions(skipping.at(b), task, _BATCH, b) for b in stage.timed_at]
    return [{**stage.names, **record, **provenance()} for record in timed]


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
