"""Experiments: a TOML file → frozen values and the stages that they ask for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from apportion.backbones.encoder import EncoderConfig
from apportion.gates import check_budget
from apportion.recipes import RECIPES, Recipe, recipe
from apportion.scoring import SOURCES
from apportion.stages import Stage
from apportion.tasks.marked import Marked

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_STAGE_KEYS = {"method", "recipe", "score", "from", "teacher", "grid", "each", "latency", "model"}


@dataclass(frozen=True)
class Reference:
    """A row of the paper's table, as printed there, and the point of ours that it stands beside."""

    name: str
    method: str
    form: str
    budget: float
    cost: str
    accuracy: str


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
    paper: tuple[Reference, ...] = ()
    goals: tuple[Goal, ...] = ()


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
    keys = {stage.key for stage in experiment.stages}
    return [dict(record) for record in have if record.get("stage") in keys]


def _experiment(data: dict[str, Any]) -> Experiment:
    known = {"name", "title", "budgets", "seeds", "task", "model", "stage", "paper", "goal"}
    _check_keys("the file", data, dict.fromkeys(known, "Any"))
    for needed in ("name", "seeds", "task", "model", "stage"):
        if needed not in data:
            raise ValueError(f"{needed!r} is missing")
    for section in ("seeds", "task", "model"):
        if not isinstance(data[section], dict):
            raise ValueError(f"{section!r} must be a table, [{section}]")
    for section in ("stage", "paper", "goal"):
        if not all(isinstance(row, dict) for row in data.get(section, ())):
            raise ValueError(f"{section!r} must be a list of tables, [[{section}]]")
    data_seeds, seeds = _seeds(data["seeds"])
    task = _task(data["task"], data_seeds[0])
    _check_keys("[model]", data["model"], _SHAPE)
    _check_keys("the file", {"budgets": data.get("budgets", [])}, {"budgets": "tuple[float, ...]"})
    budgets = tuple(check_budget(b) for b in data.get("budgets", (0.25, 0.5, 0.75)))
    stages: list[Stage] = []
    for entry in data["stage"]:
        model = {**data["model"], **entry.get("model", {})}
        _check_keys(f"model of stage {entry.get('method')!r}", model, _SHAPE)
        EncoderConfig(vocabulary=1, length=task.length, **model)  # complains now, not later
        for data_seed in data_seeds if entry.get("grid") else data_seeds[:1]:
            for seed in seeds:
                cell = replace(task, seed=data_seed)
                stages += _stages_of(entry, cell, model, seed, budgets, stages)
    for section, kind in (("paper", Reference), ("goal", Goal)):
        for row in data.get(section, ()):
            _check_keys(f"[[{section}]]", row, _types(kind))
    return Experiment(
        name=data["name"],
        title=data.get("title", data["name"]),
        task=task,
        model=data["model"],
        data_seeds=data_seeds,
        seeds=seeds,
        budgets=budgets,
        stages=tuple(stages),
        paper=tuple(Reference(**row) for row in data.get("paper", ())),
        goals=tuple(Goal(**row) for row in data.get("goal", ())),
    )


def _seeds(table: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    types = {"data": "tuple[int, ...]", "optimisation": "tuple[int, ...]"}
    _check_keys("[seeds]", table, types)
    for name in types:
        if not table.get(name) or min(table[name]) < 0:
            raise ValueError(f"[seeds] {name} must list one seed or more, none below 0")
    return tuple(table["data"]), tuple(table["optimisation"])


def _task(table: Mapping[str, Any], seed: int) -> Marked:
    if table.get("kind") != "marked":
        raise ValueError(f"[task] kind must be 'marked', not {table.get('kind')!r}")
    numbers = {name: value for name, value in table.items() if name != "kind"}
    _check_keys("[task]", numbers, {k: v for k, v in _types(Marked).items() if k != "seed"})
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
    if "method" not in entry:
        raise ValueError("a [[stage]] has no method")
    method = entry["method"]
    numbers = {k: v for k, v in entry.items() if k not in _STAGE_KEYS}
    if ("recipe" in entry) == ("score" in entry):
        raise ValueError(f"stage {method!r} needs either a recipe or a score")
    if "score" in entry:
        if entry["score"] not in SOURCES:
            raise ValueError(f"unknown score {entry['score']!r}; known: {', '.join(SOURCES)}")
        if "from" not in entry or "each" in entry or entry.get("latency"):
            raise ValueError(f"stage {method!r} has a score: it needs 'from', not each or latency")
        _check_keys(f"stage {method!r}", numbers, {})
    elif entry["recipe"] not in RECIPES:
        raise ValueError(f"unknown recipe {entry['recipe']!r}; known: {', '.join(RECIPES)}")
    else:
        _check_keys(f"stage {method!r}", numbers, _types(Recipe))
        if entry.get("latency") and RECIPES[entry["recipe"]].objective == "dense":
            raise ValueError(f"stage {method!r} has no gates, so there are no budgets to time")

    def find(name: str) -> Stage:
        for stage in earlier:
            if (stage.method, stage.task.seed, stage.seed) == (name, task.seed, seed):
                return stage
        raise ValueError(f"stage {method!r} refers to {name!r}, which is not an earlier stage")

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
        latency=bool(entry.get("latency", False)),
    )
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


def _types(kind: Any) -> dict[str, str]:
    """The names of a dataclass's fields and what is written there as their types."""
    return {field.name: str(field.type) for field in fields(kind)}


_SHAPE = {
    name: written
    for name, written in _types(EncoderConfig).items()
    if name not in ("vocabulary", "length", "classes")  # those come from the task
}

# What may stand for a type that is written in a dataclass, and its name for people.
_FITS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "text"),
}


def _check_keys(where: str, data: Mapping[str, Any], types: Mapping[str, str]) -> None:
    """Complains of a key that is not known, and of a value of the wrong type."""
    unknown = sorted(set(data) - set(types))
    if unknown:
        known = f"; known: {', '.join(sorted(types))}" if types else ""
        raise ValueError(f"{where} has unknown keys {', '.join(unknown)}{known}")
    for name, value in data.items():
        several = types[name].startswith("tuple[")
        word = next((word for word in _FITS if word in types[name]), None)
        if word is None:
            continue
        kinds, called = _FITS[word]
        values = value if isinstance(value, list) else [value]
        # bool is a kind of int to Python, but not to people.
        fits = all(isinstance(v, kinds) and isinstance(v, bool) == (word == "bool") for v in values)
        if not fits or several != isinstance(value, list):
            each = "a list, each " if several else ""
            raise ValueError(f"{where} {name} must be {each}{called}, not {value!r}")
