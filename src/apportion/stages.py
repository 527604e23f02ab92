"""Stages: one model of one method and one seed, trained or scored, then measured.

A stage is keyed by a hash of all that decides its weights, so a warm start is trained once and
shared by all that come from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion.backbones.encoder import Encoder, EncoderConfig
from apportion.backbones.hub import check_digest, load_model, load_words, untrained_model
from apportion.benchmark import TIMED_FORMS
from apportion.checkpoint import Checkpoint, has_checkpoint, load, save
from apportion.elastic import Elastic, plain_of
from apportion.evaluation import SWEEP
from apportion.gates import check_budget
from apportion.recipes import Recipe
from apportion.records import provenance
from apportion.repairing import repair
from apportion.scoring import SOURCES, Scored, nest
from apportion.sites import largest_block
from apportion.surgery import cut
from apportion.tasks import Task, TaskSpec
from apportion.tasks.text import Text
from apportion.training import Tick, fit, telling
from apportion.units import Allocation


@dataclass(frozen=True)
class Timing:
    """How a model is timed; the defaults are the paper's for its own encoder.

    Texts are padded to the whole length as the paper has it, grouped by length as people would
    run it and, if asked for, taken one at a time, whole or their first tokens.
    """

    budgets: tuple[float, ...] | None = None  # those of the tables, if not all of them
    batch: int = 64
    rows: int = 2000  # of texts; where rows are all alike, one batch will do
    repeats: int | None = None  # 5 over all rows of texts, or 41 of the one batch
    single: bool = False
    short: int | None = None  # also single rows of so many tokens
    forms: tuple[str, ...] | None = None  # of those that are timed; all, of texts but the mask
    predictions: bool = True  # also how much of the bare model's throughput `predict` keeps

    def __post_init__(self) -> None:
        for budget in self.budgets or ():
            check_budget(budget)
        for name, least in (("batch", 1), ("rows", 1), ("repeats", 5), ("short", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"[timing] {name} must be at least {least}, not {value}")
        unknown = sorted(set(self.forms or ()) - set(TIMED_FORMS))
        if unknown:
            raise ValueError(
                f"[timing] forms are of {', '.join(TIMED_FORMS)}, not {', '.join(unknown)}"
            )


@dataclass(frozen=True)
class Stage:
    """One model of one method and one seed.

    Trained by a recipe; or the parent's, with scores; or a pretrained one as it was given.
    """

    method: str
    task: TaskSpec
    model: Mapping[str, Any]
    seed: int
    budgets: tuple[float, ...]  # of the tables
    recipe: Recipe | None = None
    score: str | None = None
    baseline: str | None = None
    given: bool = False
    parent: Stage | None = None
    teacher: Stage | None = None
    only: float | None = None  # the one budget of a specialist
    latency: bool = False  # this is the model that is timed
    keep: int = 0  # units of each layer that scores leave, whatever they say
    kinds: tuple[str, ...] = ("heads",)  # of units that can be switched off
    nested: bool = False  # scores give one order for all budgets, and units stand in it
    repair: bool = False  # what stays makes up for what a budget switches off, in closed form
    sweep: bool = True  # measured at the sweep's budgets, and not only at those of the tables
    test_rows: int | None = None  # measured on so many, where not on the task's own
    timing: Timing = Timing()
    weights: Path | None = None  # folder of the pretrained model, if not where its name says
    device: str = "cpu"  # where it is measured; training takes an accelerator where there is one

    @cached_property  # the driver asks for it all the time
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
                **({"given": True} if self.given else {}),
                **({"keep": self.keep} if self.keep else {}),
                **({"kinds": list(self.kinds)} if self._has_other_units else {}),
                **({"nested": True} if self.nested else {}),
                **({"repair": True} if self.repair else {}),
            }
        )

    @property
    def _has_other_units(self) -> bool:
        """Whether its gates are of more than heads; a model without gates does not know."""
        return self.has_gates and self.kinds != ("heads",)

    @property
    def measures(self) -> str:
        """A hash of what is measured on it: a change of budgets measures again, trains not."""
        swept = SWEEP if self.sweep else ()
        rows = {"rows": self.test_rows} if self.test_rows else {}
        return _digest({"budgets": self.budgets, "sweep": swept, "only": self.only, "v": 1, **rows})

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

    def measured_on(self, task: Task) -> Task:
        """Its task with the test rows that it is measured on: more rows train nothing again."""
        if self.test_rows is None:
            return task
        assert isinstance(self.task, Text)
        wider = replace(self.task, test=self.test_rows).build(task.words)
        if wider.train.digest() != task.train.digest():
            raise ValueError(
                "test_rows needs data with a test file of its own: other test rows "
                "would be other training rows"
            )
        return wider

    @property
    def timed_at(self) -> tuple[float, ...]:
        """The budgets at which it is timed."""
        if self.only is not None:
            return (self.only,)
        return self.timing.budgets or self.budgets

    @property
    def protocols(self) -> tuple[str | None, ...]:
        """How its rows are put together when it is timed; where all are alike, there is one way."""
        if not isinstance(self.task, Text):
            return (None,)
        asked = (("single", self.timing.single), ("short", self.timing.short))
        return ("padded", "grouped", *(name for name, wanted in asked if wanted))

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
    teacher = produce(stage.teacher, runs, progress, task).model if stage.teacher else None
    kept: Allocation | None = None
    model: nn.Module
    facts: dict[str, Any]
    if stage.given:
        model, facts = start, {}
    elif stage.recipe is None:
        model, facts = _score(stage, start, task, teacher, progress)
    else:
        if stage.recipe.objective != "dense" and not isinstance(start, Elastic):
            start = Elastic(start, stage.kinds, task.length, block=largest_block(start))
        elif stage.recipe.objective == "dense" and isinstance(start, Elastic):
            # A specialist: cut by its parent's gates at its own budget, then trained as it is.
            assert stage.parent and stage.only
            kept = start.allocation(stage.only, stage.parent.floor)
            start = cut(start.plain(), kept)
        fitted = fit(start, task, stage.recipe, stage.seed, teacher, state, progress=progress)
        model = fitted.model
        facts = {
            "epochs": stage.recipe.epochs,
            "best": asdict(fitted.best),
            "seconds": round(fitted.seconds, 1),
            "processes": fitted.processes,
        }
    notes = {
        "task": dict(task.spec),
        "classes": list(task.classes),
        "data": task.digest(),
        **({"pretrained": stage.model["pretrained"]} if "pretrained" in stage.model else {}),
        "method": stage.method,
        "seed": stage.seed,
        "recipes": [
            *(parent.notes["recipes"] if parent else []),
            *([stage.recipe.to_dict()] if stage.recipe else []),
        ],
        "training": {**facts, **provenance(threads=torch.get_num_threads())},
    }
    checkpoint = Checkpoint(model, notes, kept, task.words)
    save(checkpoint, folder)
    state.unlink(missing_ok=True)
    return checkpoint


def _score(
    stage: Stage,
    model: nn.Module,
    task: Task,
    teacher: nn.Module | None,
    progress: Callable[[Tick], None] | None,
) -> tuple[Elastic, dict[str, Any]]:
    """A model whose gates open its units in the order of the stage's scores, and those."""
    assert stage.score is not None
    plain = plain_of(model)
    elastic = Elastic(plain, stage.kinds, length=task.length, block=largest_block(plain))
    with_gates = teacher if isinstance(teacher, Elastic) else None
    tell = telling(progress, "scoring")

    def score(units: Elastic) -> Scored:
        return SOURCES[stage.score or ""](units, task, stage.seed, with_gates, tell)

    if stage.nested:
        elastic, scored = nest(elastic, score)
    else:
        scored = score(elastic)
        elastic.gates.order_by(scored.scores)
    scores = [float(f"{score:.6g}") for score in scored.scores.tolist()]
    facts = {"scores": scores, **scored.facts}
    if stage.repair:
        tell = telling(progress, "repair")
        elastic, repaired = repair(elastic, task.train, progress=tell)
        facts |= repaired
    return elastic, facts


def new_model(stage: Stage, task: Task) -> nn.Module:
    """The model that a stage without a parent starts from."""
    if "digest" in stage.model:
        check_digest(stage.model["pretrained"], stage.model["digest"], stage.weights)
    if "pretrained" in stage.model:
        name = stage.model["pretrained"]
        return load_model(name, task.classes, stage.seed, stage.weights, trained=stage.given)
    if "architecture" in stage.model:
        facts = {
            "vocabulary": task.vocabulary,
            "classes": len(task.classes),
            "length": task.length,
        }
        return untrained_model(stage.model, facts, stage.seed)
    return new_encoder(task, stage.model, stage.seed)


def new_encoder(task: Task, shape: Mapping[str, Any], seed: int) -> Encoder:
    """An untrained encoder for a task; the same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(
            EncoderConfig(task.vocabulary, task.length, len(task.classes), **dict(shape))
        )


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
