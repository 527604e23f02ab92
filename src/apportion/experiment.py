"""Experiments: a TOML file → frozen values and the stages that they ask for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from apportion.backbones.encoder import EncoderConfig
from apportion.evaluation import SWEEP
from apportion.gates import check_budget
from apportion.recipes import Recipe, recipe
from apportion.scoring import SOURCES
from apportion.stages import Stage
from apportion.tasks.marked import Marked

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Row:
    """A row of the study's main table, and what the paper's table has there, as printed."""

    name: str
    method: str
    form: str
    budget: float
    paper_cost: str = "–"
    paper_accuracy: str = "–"


@dataclass(frozen=True)
class Goal:
    """What an experiment sets out to reach; accuracies in percent."""

    name: str
    method: str
    form: str = "soft"
    budget: float = 1.0
    mean_accuracy: float | None = None  # at least
    every_accuracy: float | None = None  # each seed above
    cost: float | None = None  # at most
    share_of_bound: float | None = None  # measured speed-up over the bound, at least
    monotone: bool = False

    def asks(self) -> str:
        """The goal in words."""
        parts = []
        if self.mean_accuracy is not None:
            parts.append(f"mean ≥ {self.mean_accuracy:g} %")
        if self.every_accuracy is not None:
            parts.append(f"every seed > {self.every_accuracy:g} %")
        if self.cost is not None:
            parts.append(f"cost ≤ {self.cost:g}")
        if self.share_of_bound is not None:
            parts.append(f"≥ {100 * self.share_of_bound:g} % of the bound by MACs")
        if self.monotone:
            parts.append("monotone for every seed")
        return ", ".join(parts)


@dataclass(frozen=True)
class Experiment:
    """An experiment file, checked."""

    name: str
    title: str
    task: Marked
    model: Mapping[str, Any]
    data_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    budgets: tuple[float, ...]
    stages: tuple[Stage, ...]
    rows: tuple[Row, ...] = ()
    goals: tuple[Goal, ...] = ()

    @property
    def shape(self) -> EncoderConfig:
        """The model's shape, defaults filled in."""
        return EncoderConfig(vocabulary=1, length=self.task.length, **self.model)

    def stages_of(self, method: str) -> list[Stage]:
        """The stages of one method."""
        return [stage for stage in self.stages if stage.method == method]


def read_experiment(path: Path) -> Experiment:
    """The experiment in a TOML file; an unknown key is an error that names the known ones."""
    try:
        return parse_experiment(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no experiment file {path}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def parse_experiment(text: str) -> Experiment:
    """The experiment that a TOML text describes."""
    try:
        return _experiment(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None


def current(experiment: Experiment, have: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records that belong to an experiment as it is now, without what it no longer holds."""
    stages = {stage.key: stage for stage in experiment.stages}
    budgets = {*SWEEP, *experiment.budgets}
    return [
        dict(record)
        for record in have
        if record.get("stage") in stages and record.get("budget", 1.0) in budgets
    ]


def _experiment(data: dict[str, Any]) -> Experiment:
    _check("the file", data, _FILE)
    for needed in ("name", "seeds", "task", "model", "stage"):
        if needed not in data:
            raise ValueError(f"{needed!r} is missing")
    data_seeds, seeds = _seeds(data["seeds"])
    task = _task(data["task"], data_seeds[0])
    budgets = tuple(check_budget(b) for b in data.get("budgets", (0.25, 0.5, 0.75)))
    stages: list[Stage] = []
    for entry in data["stage"]:
        _check(f"stage {entry.get('method')!r}", entry, _STAGE | get_type_hints(Recipe))
        if "method" not in entry:
            raise ValueError("a [[stage]] has no method")
        if any(stage.method == entry["method"] for stage in stages):
            raise ValueError(f"there are two stages of method {entry['method']!r}")
        model = {**data["model"], **entry.get("model", {})}
        _check("[model]", model, _SHAPE)
        EncoderConfig(vocabulary=1, length=task.length, **model)  # complains now, not later
        for data_seed in data_seeds if entry.get("grid") else data_seeds[:1]:
            for seed in seeds:
                cell = replace(task, seed=data_seed)
                stages += _stages_of(entry, cell, model, seed, budgets, stages)
    if len({stage.key for stage in stages}) < len(stages):
        raise ValueError("two of the stages are the same but for their names")
    for section, kind in (("row", Row), ("goal", Goal)):
        for row in data.get(section, ()):
            _check(f"[[{section}]]", row, get_type_hints(kind))
    return Experiment(
        name=data["name"],
        title=data.get("title", data["name"]),
        task=task,
        model=data["model"],
        data_seeds=data_seeds,
        seeds=seeds,
        budgets=budgets,
        stages=tuple(stages),
        rows=tuple(Row(**row) for row in data.get("row", ())),
        goals=tuple(Goal(**row) for row in data.get("goal", ())),
    )


def _seeds(table: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    _check("[seeds]", table, {"data": tuple[int, ...], "optimisation": tuple[int, ...]})
    for name in ("data", "optimisation"):
        listed = table.get(name, [])
        if not listed or min(listed) < 0 or len(set(listed)) < len(listed):
            raise ValueError(f"[seeds] {name} must list different seeds, one or more, none below 0")
    return tuple(table["data"]), tuple(table["optimisation"])


def _task(table: Mapping[str, Any], seed: int) -> Marked:
    if table.get("kind") != "marked":
        raise ValueError(f"[task] kind must be 'marked', not {table.get('kind')!r}")
    numbers = {name: value for name, value in table.items() if name != "kind"}
    hints = get_type_hints(Marked)
    del hints["seed"]  # [seeds] says it
    _check("[task]", numbers, hints)
    return Marked(**numbers, seed=seed)


def _stages_of(
    entry: Mapping[str, Any],
    task: Marked,
    model: Mapping[str, Any],
    seed: int,
    budgets: tuple[float, ...],
    earlier: Iterable[Stage],
) -> list[Stage]:
    """The stages of one [[stage]] entry for one seed: one, or one a budget with `each`."""
    method = entry["method"]
    numbers = {name: value for name, value in entry.items() if name not in _STAGE}

    def find(name: str) -> Stage:
        found = [s for s in earlier if (s.method, s.task.seed, s.seed) == (name, task.seed, seed)]
        if len(found) != 1:
            raise ValueError(f"stage {method!r} refers to {name!r}, which is not one earlier stage")
        return found[0]

    base = Stage(
        method=method,
        task=task,
        model=model,
        seed=seed,
        budgets=budgets,
        recipe=recipe(entry["recipe"], **numbers) if "recipe" in entry else None,
        score=entry.get("score"),
        parent=find(entry["from"]) if "from" in entry else None,
        teacher=find(entry["teacher"]) if "teacher" in entry else None,
        latency=entry.get("latency", False),
    )
    _check_stage(base, numbers, "each" in entry)
    if "each" not in entry:
        return [base]
    assert base.recipe is not None
    return [
        replace(
            base,
            only=check_budget(budget),
            recipe=base.recipe.with_changes(budgets=(budget, budget), select_at=(budget,)),
        )
        for budget in entry["each"]
    ]


def _check_stage(stage: Stage, numbers: Mapping[str, Any], each: bool) -> None:
    """Complains of a stage that could not run, before any other has."""
    if (stage.recipe is None) == (stage.score is None):
        raise ValueError(f"stage {stage.method!r} needs either a recipe or a score")
    if stage.recipe is None:
        if stage.score not in SOURCES:
            raise ValueError(f"unknown score {stage.score!r}; known: {', '.join(SOURCES)}")
        if stage.parent is None or each or stage.latency or numbers:
            raise ValueError(f"stage {stage.method!r} has a score: it needs 'from', and no more")
        return
    dense = stage.recipe.objective == "dense"
    if dense and (each or stage.latency):
        raise ValueError(
            f"stage {stage.method!r} has no gates, so it has no budgets to train or time"
        )
    if dense and stage.parent and stage.parent.recipe and stage.parent.recipe.objective != "dense":
        raise ValueError(f"stage {stage.method!r} trains a plain model, its parent has gates")


_FILE = {
    "name": str,
    "title": str,
    "budgets": tuple[float, ...],
    "seeds": dict,
    "task": dict,
    "model": dict,
    "stage": tuple[dict[str, Any], ...],
    "row": tuple[dict[str, Any], ...],
    "goal": tuple[dict[str, Any], ...],
}
_STAGE = {
    "method": str,
    "recipe": str,
    "score": str,
    "from": str,
    "teacher": str,
    "model": dict,
    "grid": bool,
    "each": tuple[float, ...],
    "latency": bool,
}
_SHAPE = {
    name: hint
    for name, hint in get_type_hints(EncoderConfig).items()
    if name not in ("vocabulary", "length", "classes", "model_type")  # those are not to choose
}
_CALLED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _check(where: str, data: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Complains of a key that is not known, and of a value of the wrong type."""
    unknown = sorted(set(data) - set(hints))
    if unknown:
        known = ", ".join(sorted(hints))
        raise ValueError(f"{where} has unknown keys {', '.join(unknown)}; known: {known}")
    for name, value in data.items():
        hint = hints[name]
        if not _fits(value, hint):
            needed = _CALLED.get(hint, "a table")
            if get_origin(hint) is tuple:
                needed = f"a list, each {_CALLED.get(get_args(hint)[0], 'a table')}"
            elif get_args(hint) and get_origin(hint) is not dict:
                needed = " or ".join(repr(one) for one in get_args(hint))
            raise ValueError(f"{where} {name} must be {needed}, not {value!r}")


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, list) and all(_fits(one, arguments[0]) for one in value)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if hint in (int, float):  # bool is a kind of int to Python, but not to people
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, origin or hint)
