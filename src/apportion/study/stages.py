"""Stages: one model of one method and one seed, trained or scored, then measured.

A stage is keyed by a hash of all that decides its weights, so a warm start is trained once and
shared by all that come from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from apportion.data.task import Task, TaskSpec
from apportion.data.text import Text
from apportion.elastic.checkpoint import has_checkpoint
from apportion.elastic.evaluation import SWEEP
from apportion.elastic.repairing import REPAIRED_AT
from apportion.method.units import check_budget
from apportion.models.hub import load_words
from apportion.serving.timing import TIMED_FORMS
from apportion.training.recipes import Recipe

# The arithmetic that decides what stages make. Whoever changes it counts its version up: the stages
# that use it get other keys, and so are due again. Version 1 stands in no key.
VERSIONS = {"scoring": 1, "repair": 2, "training": 1}


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
    warmup: int | None = (
        None  # rounds before those: 1 over all rows of texts, or 3 of the one batch
    )
    single: bool = False
    short: int | None = None  # also single rows of so many tokens
    forms: tuple[str, ...] | None = None  # of those that are timed; all, of texts but the mask
    predictions: bool = True  # also how much of the bare model's throughput `predict` keeps

    def __post_init__(self) -> None:
        for budget in self.budgets or ():
            check_budget(budget)
        for name, least in (("batch", 1), ("rows", 1), ("repeats", 5), ("warmup", 0), ("short", 1)):
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
    made_by: Mapping[str, int] = field(default_factory=dict)  # versions, where not today's
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
                **({"versions": newer} if (newer := self._later_versions) else {}),
            }
        )

    def version(self, producer: str) -> int:
        """The version of the arithmetic that makes it: today's, or one that it is kept at."""
        return self.made_by.get(producer, VERSIONS[producer])

    @property
    def _later_versions(self) -> dict[str, int]:
        used = {"scoring": self.score, "repair": self.repair, "training": self.recipe}
        versions = {producer: self.version(producer) for producer in used if used[producer]}
        return {producer: version for producer, version in versions.items() if version > 1}

    def as_made_by(self, version: int) -> Stage:
        """The stage as it was when no producer was beyond a version, with all it comes from."""
        return replace(
            self,
            made_by={producer: min(self.version(producer), version) for producer in VERSIONS},
            parent=self.parent and self.parent.as_made_by(version),
            teacher=self.teacher and self.teacher.as_made_by(version),
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

    @property
    def lowest(self) -> float:
        """The smallest budget that its model is trained, repaired, measured or timed at."""
        asked: list[float] = [*self.timed_at, *(REPAIRED_AT if self.repair else ())]
        if self.only is None:
            asked += [*self.budgets, *(SWEEP if self.recipe and self.sweep else ())]
        return min([*asked, self.recipe.lowest if self.recipe else 1.0])

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
        (r.get("kind"), r.get("stage"), r.get("measures")) == ("stage", stage.key, stage.measures)
        for r in records
    )


def was_done(stage: Stage, records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether an earlier version made a stage that is now due again."""
    keys = {record["stage"] for record in records if record.get("kind") == "stage"}
    earlier = (stage.as_made_by(version).key for version in range(1, max(VERSIONS.values())))
    return stage.key not in keys and any(key in keys for key in earlier)


def checkpoint_folder(stage: Stage, runs: Path) -> Path:
    """Where a stage keeps its model."""
    return runs / f"{stage.method}-{stage.key}"


def has_model(stage: Stage, runs: Path) -> bool:
    """Whether a stage's model is there."""
    return has_checkpoint(checkpoint_folder(stage, runs))


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
