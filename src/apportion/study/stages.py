"""Stages: one model of one method and one seed, trained, scored or given, then measured.

A stage is keyed by a hash of all that decides its weights, so a warm start is trained once and
shared by all that come from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from apportion.data.task import Task, TaskSpec
from apportion.data.text import Text
from apportion.elastic.checkpoint import has_checkpoint
from apportion.elastic.elastic import Form
from apportion.elastic.evaluation import SWEEP
from apportion.elastic.repairing import REPAIRED_AT
from apportion.elastic.scoring import SOURCES
from apportion.elastic.searching import check_seconds
from apportion.models.hub import load_tokenizer
from apportion.study.baselines import BASELINES
from apportion.study.protocols import MeasuredRows, Timing
from apportion.training.recipes import Recipe
from apportion.training.tuning import FEWEST

# Scores of the first studies, whose models compute their last layer for all tokens.
OLDER_SCORES = ("loss-increase", "squared-gradient", "learned", "random", "uniform")
# The arithmetic that decides what stages make. Whoever changes it counts its version up: the stages
# that use it get other keys, and so are due again. Version 1 stands in no key.
VERSIONS = {"scoring": 1, "repair": 3, "tuning": 3, "training": 1}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One model of one method and one seed: what its four kinds share.

    A `TrainedStage` fits a recipe, a `ScoredStage` orders the units of a model, a `BaselineStage`
    is a method of another kind, and a `GivenStage` is a pretrained model as it is.
    """

    method: str
    task: TaskSpec
    model: Mapping[str, Any]
    seed: int
    budgets: tuple[float, ...]  # of the tables
    kinds: tuple[str, ...] = ("heads",)  # of units that can be switched off
    sweep: bool = True  # measured at the sweep's budgets, and not only at those of the tables
    test_rows: MeasuredRows | None = None  # where not the task's own
    answers: bool = False  # what it says of each test row is kept
    made_by: Mapping[str, int] = field(default_factory=dict)  # versions, where not today's
    timing: Timing = field(default_factory=Timing)
    weights: Path | None = None  # folder of the pretrained model, if not where its name says
    device: str = "cpu"  # where it is measured; training takes an accelerator where there is one

    # What only some kinds have: this is the answer of the others. A kind that has it takes it in
    # its own signature; `field()` there is what has no default.
    recipe: Recipe | None = field(default=None, init=False)
    score: str | None = field(default=None, init=False)
    baseline: str | None = field(default=None, init=False)
    parent: Stage | None = field(default=None, init=False)
    teacher: Stage | None = field(default=None, init=False)
    only: float | None = field(default=None, init=False)  # the one budget of a specialist
    latency: bool = field(default=False, init=False)  # this is the model that is timed
    keep: int = field(default=0, init=False)  # units of each layer that scores leave
    nested: bool = field(default=False, init=False)  # scores give one order for all budgets
    search: bool = field(default=False, init=False)  # of what budgets keep, after scoring
    repair: bool = field(default=False, init=False)  # in closed form, after both
    tune: int = field(default=0, init=False)  # by the parent's answers to so many views, after all
    seconds: float | None = field(default=None, init=False)  # of these, where that is bounded
    given: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for producer, version in self.made_by.items():
            if producer not in VERSIONS or version not in range(1, VERSIONS[producer] + 1):
                known = ", ".join(f"{name} to {latest}" for name, latest in VERSIONS.items())
                raise ValueError(
                    f"stage {self.method!r} is made_by versions from 1 of {known}; "
                    f"not by {producer} {version!r}"
                )
        for source in self.sources:
            if source.baseline is not None:
                raise ValueError(
                    f"stage {self.method!r} refers to {source.method!r}, a baseline without a model"
                )
        if self.latency and self.form == "nested" and "soft" in (self.timing.forms or ()):
            raise ValueError(f"[timing] forms has soft, and stage {self.method!r} is nested")

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
                **{name: value for name, value in self._later_parts.items() if value},
            }
        )

    @property
    def _later_parts(self) -> dict[str, Any]:
        """What keys did not hold at first: it stands in one only where it changes something."""
        producers: dict[str, Any] = {"scoring": self.score, "repair": self.repair}
        producers |= {"tuning": self.tune, "training": self.recipe}
        versions = {name: self.version(name) for name, used in producers.items() if used}
        return {
            "baseline": self.baseline,
            "given": self.given,
            "keep": self.keep,
            # A model without gates does not know of units that others switch off.
            "kinds": self.has_gates and self.kinds != ("heads",) and list(self.kinds),
            "nested": self.nested,
            "search": self.search,
            "repair": self.repair,
            "tune": self.tune,
            "seconds": self.seconds,
            "versions": {name: version for name, version in versions.items() if version > 1},
        }

    @property
    def form(self) -> Form | None:
        """How its model applies a budget; None where it has no gates, and so no budgets."""
        return None

    @property
    def floor(self) -> int:
        """Units that each layer keeps at least."""
        return 0

    @property
    def lowest(self) -> float:
        """The smallest budget that its model is trained, repaired, measured or timed at."""
        return min([*self.timed_at, *self.budgets, 1.0])

    @property
    def has_gates(self) -> bool:
        """Whether its model has gates: learned ones, or set from scores."""
        return self.form is not None

    @property
    def sources(self) -> tuple[Stage, ...]:
        """The stages whose models it needs: its parent and its teacher, where it has them."""
        return tuple(source for source in (self.parent, self.teacher) if source is not None)

    def version(self, producer: str) -> int:
        """The version of the arithmetic that makes it: today's, or one that it is kept at."""
        return self.made_by.get(producer, VERSIONS[producer])

    def as_made_by(self, version: int) -> Stage:
        """The stage as it was when no producer was beyond a version, with all it comes from."""
        sources = {"parent": self.parent, "teacher": self.teacher}
        changes: dict[str, Any] = {
            name: made.as_made_by(version) for name, made in sources.items() if made
        }
        changes["made_by"] = {name: min(self.version(name), version) for name in VERSIONS}
        return replace(self, **changes)

    @property
    def swept_at(self) -> tuple[float, ...]:
        """The budgets that gates are measured at, whatever the tables show."""
        return SWEEP if self.sweep else ()

    @property
    def measures(self) -> str:
        """A hash of what is measured on it: a change of budgets measures again, trains not."""
        measured = {"budgets": self.budgets, "sweep": self.swept_at, "only": self.only, "v": 1}
        return _digest(measured | (self.test_rows.identity() if self.test_rows else {}))

    def build_task(self) -> Task:
        """The task with its rows; a pretrained model brings its own words."""
        name = self.model.get("pretrained")
        own = load_tokenizer(name, self.task.length, self.weights) if name else None
        return self.task.build(own)

    def measured_on(self, task: Task) -> Task:
        """Its task with the test rows that it is measured on: more rows train nothing again."""
        if self.test_rows is None:
            return task
        assert isinstance(self.task, Text)
        return self.test_rows.of(self.task, task)

    @property
    def timed_at(self) -> tuple[float, ...]:
        """The budgets at which it is timed."""
        if self.only is not None:
            return (self.only,)
        return self.timing.budgets or self.budgets

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


@dataclass(frozen=True, kw_only=True)
class TrainedStage(Stage):
    """A model that a recipe trains: a new one, or its parent's, maybe for one budget alone.

    A recipe for a plain model cuts a parent that has gates at that one budget, then trains it.
    """

    recipe: Recipe = field()
    parent: Stage | None = None
    teacher: Stage | None = None
    only: float | None = None
    latency: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recipe.hidden and self.teacher is None:
            raise ValueError(f"stage {self.method!r} has hidden, and no teacher to learn that from")
        if self.recipe.word_dropout and not isinstance(self.task, Text):
            raise ValueError(f"stage {self.method!r} has word_dropout; the task has no words")
        if self.has_gates:
            return
        cut = self.parent is not None and self.parent.has_gates
        if cut != (self.only is not None):
            raise ValueError(
                f"stage {self.method!r} trains a plain model: from one with gates, it is cut at "
                "each budget, and from any other there are no budgets"
            )
        if self.latency and self.only is None:
            raise ValueError(f"stage {self.method!r} has no gates, so it has no budgets to time")

    @property
    def form(self) -> Form | None:
        """That of its recipe."""
        return None if self.recipe.objective == "dense" else self.recipe.form

    @property
    def floor(self) -> int:
        """That of its recipe."""
        return self.recipe.floor

    @property
    def lowest(self) -> float:
        """The smallest budget of its recipe, its sweep, its tables or its timing."""
        measured = () if self.only is not None else (*self.budgets, *self.swept_at)
        return min([*self.timed_at, *measured, self.recipe.lowest])


@dataclass(frozen=True, kw_only=True)
class ScoredStage(Stage):
    """A model whose gates open its units in the order of their scores, without any labels."""

    score: str = field()
    parent: Stage | None = None
    teacher: Stage | None = None  # whose gates are the scores
    latency: bool = False
    keep: int = 0  # units of each layer that scores leave, whatever they say
    nested: bool = False  # units stand in the one order of all budgets
    search: bool = False  # what small budgets keep is measured together
    repair: bool = False  # what stays makes up for what a budget switches off
    tune: int = 0  # views of texts from which it then learns its parent's answers
    seconds: float | None = None  # that all of it may take; then weights vary by machine

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score not in SOURCES:
            raise ValueError(f"unknown score {self.score!r}; known: {', '.join(SOURCES)}")
        has_teacher = self.teacher is not None and self.teacher.has_gates
        if has_teacher != (self.score == "learned"):
            raise ValueError("score 'learned', and no other, needs a teacher with gates")
        further, named = self.search or self.repair or self.tune, f"stage {self.method!r} has"
        if further and (not self.nested or self.keep):
            raise ValueError(f"{named} search, repair or tune: these need nested = true, no keep")
        if self.tune and (self.tune < FEWEST or not isinstance(self.task, Text)):
            raise ValueError(f"{named} tune: a number of views of texts, {FEWEST} at least")
        if self.seconds is not None and not further:
            raise ValueError(f"{named} seconds, and no search, repair or tune for them")
        check_seconds(self.seconds)

    @property
    def form(self) -> Form | None:
        """Hard: scores are an order, and gates that are half open would mean nothing."""
        return "nested" if self.nested else "hard"

    @property
    def floor(self) -> int:
        """What it was told to keep."""
        return self.keep

    @property
    def lowest(self) -> float:
        """The smallest budget of its tables, its timing or its repair."""
        repaired: tuple[float, ...] = REPAIRED_AT if self.repair or self.tune else ()
        return min([*self.timed_at, *self.budgets, *repaired, 1.0])


@dataclass(frozen=True, kw_only=True)
class BaselineStage(Stage):
    """A method of another kind on the same texts: it has no model to come from."""

    baseline: str = field()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline not in BASELINES:
            raise ValueError(f"unknown baseline {self.baseline!r}; known: {', '.join(BASELINES)}")
        if not isinstance(self.task, Text):
            raise ValueError(f"stage {self.method!r} is a baseline of texts; the task has none")


@dataclass(frozen=True, kw_only=True)
class GivenStage(Stage):
    """A pretrained model with its own classifier, as it was given."""

    given: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "pretrained" not in self.model:
            raise ValueError(f"stage {self.method!r} is a model as given: [model] pretrained")


def checkpoint_folder(stage: Stage, runs: Path) -> Path:
    """Where a stage keeps its model."""
    return runs / f"{stage.method}-{stage.key}"


def has_model(stage: Stage, runs: Path) -> bool:
    """Whether a stage's model is there."""
    return has_checkpoint(checkpoint_folder(stage, runs))


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
