"""Experiments: a TOML file → frozen values and the stages that they ask for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from apportion.data.marked import Marked
from apportion.data.task import TaskSpec
from apportion.data.text import Text
from apportion.elastic.evaluation import SWEEP
from apportion.files import check
from apportion.method.units import KINDS, check_budget
from apportion.models.encoder import EncoderConfig
from apportion.study.claims import Claim
from apportion.study.rules import check_claims, check_model, check_stage, check_timing
from apportion.study.stages import Stage, Timing
from apportion.training.recipes import Recipe, recipe

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
    paper_speedup: str = "–"
    paper_ms: str = "–"
    table: str = "core"  # a study may have more than one


@dataclass(frozen=True)
class Experiment:
    """An experiment file, checked."""

    name: str
    title: str
    task: TaskSpec
    model: Mapping[str, Any]
    data_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    budgets: tuple[float, ...]
    stages: tuple[Stage, ...]
    rows: tuple[Row, ...] = ()
    claims: tuple[Claim, ...] = ()  # what it sets out to reach
    paired: bool = False  # each optimisation seed has the data seed of its place
    figure: tuple[str, ...] = ()  # methods that are drawn and swept, where not all are
    beside_paper: str = ""  # what to know before comparing with the paper's numbers
    test_rows: int | None = None  # that all of it is measured on, where not the task's own

    @property
    def model_words(self) -> str:
        """The model in a few words."""
        if "pretrained" in self.model:
            return str(self.model["pretrained"])
        defaults = {f.name: f.default for f in fields(EncoderConfig)}
        shape = {**defaults, **self.model}
        kind = f"{shape['architecture']}, random weights, " if "architecture" in shape else ""
        return f"{kind}{shape['layers']} layers x {shape['heads']} heads, hidden {shape['hidden']}"

    def stages_of(self, method: str) -> list[Stage]:
        """The stages of one method."""
        return [stage for stage in self.stages if stage.method == method]


def read_experiment(
    path: Path, data: Path | None = None, weights: Path | None = None
) -> Experiment:
    """The experiment in a TOML file; an unknown key is an error that names the known ones.

    `data` and `weights` are the folders of its texts and of its pretrained model, if those are not
    where the file says.
    """
    tables = read_toml(path)
    try:
        return experiment_of(tables, data, weights)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def parse_experiment(
    text: str, data: Path | None = None, weights: Path | None = None
) -> Experiment:
    """The experiment that a TOML text describes."""
    try:
        return experiment_of(tomllib.loads(text), data, weights)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no experiment file {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name}: not TOML: {error}") from None


def current(experiment: Experiment, have: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records that belong to an experiment as it is now, without what it no longer holds."""
    stages = {stage.key: stage for stage in experiment.stages}
    budgets = {*SWEEP, *experiment.budgets}
    return [
        dict(record)
        for record in have
        if record.get("stage") in stages and record.get("budget", 1.0) in budgets
    ]


def experiment_of(
    data: dict[str, Any], folder: Path | None = None, weights: Path | None = None
) -> Experiment:
    """The experiment that the tables of a file describe."""
    check("the file", data, _FILE)
    for needed in ("name", "seeds", "task", "model", "stage"):
        if needed not in data:
            raise ValueError(f"{needed!r} is missing")
    data_seeds, seeds = _seeds(data["seeds"])
    paired = data["seeds"].get("paired", False)
    task = _task(data["task"], data_seeds[0], folder)
    units = data.get("units", "heads")
    budgets = tuple(check_budget(b) for b in data.get("budgets", BUDGETS[units]))
    timing = _timing(data.get("timing", {}))
    kinds = UNITS[units]
    test_rows = data.get("test_rows")
    if test_rows is not None and (test_rows < 2 or not isinstance(task, Text)):
        raise ValueError(f"test_rows are two or more texts, not {test_rows} rows of this task")
    stages: list[Stage] = []
    for entry in data["stage"]:
        check(f"stage {entry.get('method')!r}", entry, _STAGE | get_type_hints(Recipe))
        if "method" not in entry:
            raise ValueError("a [[stage]] has no method")
        if any(stage.method == entry["method"] for stage in stages):
            raise ValueError(f"there are two stages of method {entry['method']!r}")
        model = {**data["model"], **entry.get("model", {})}
        check_model(model, task, weights)
        cells = [(d, s) for d in data_seeds for s in seeds]
        if paired:
            cells = list(zip(data_seeds, seeds, strict=True))
        elif not entry.get("grid"):
            cells = cells[: len(seeds)]
        for data_seed, seed in cells:
            cell = replace(task, seed=data_seed)
            made = _stages_of(entry, cell, model, seed, budgets, stages)
            stages += [
                replace(s, timing=timing, weights=weights, kinds=kinds, test_rows=test_rows)
                for s in made
            ]
    if len({stage.key for stage in stages}) < len(stages):
        raise ValueError("two of the stages are the same but for their names")
    for section, kind in (("row", Row), ("claim", Claim)):
        for row in data.get(section, ()):
            check(f"[[{section}]]", row, get_type_hints(kind))
    claims = [Claim(**{**row, "over": tuple(row.get("over", ()))}) for row in data.get("claim", ())]
    check_claims(claims, stages)
    check_timing(stages)
    unknown = set(data.get("figure", ())) - {stage.method for stage in stages}
    if unknown:
        raise ValueError(f"figure names {', '.join(sorted(unknown))}, which is no stage")
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
        claims=tuple(claims),
        paired=paired,
        figure=tuple(data.get("figure", ())),
        beside_paper=data.get("beside_paper", ""),
        test_rows=test_rows,
    )


def _seeds(table: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    hints = {"data": tuple[int, ...], "optimisation": tuple[int, ...], "paired": bool}
    check("[seeds]", table, hints)
    for name in ("data", "optimisation"):
        listed = table.get(name, [])
        if not listed or min(listed) < 0 or len(set(listed)) < len(listed):
            raise ValueError(f"[seeds] {name} must list different seeds, one or more, none below 0")
    if table.get("paired") and len(table["data"]) != len(table["optimisation"]):
        raise ValueError("[seeds] paired needs as many seeds of data as of optimisation")
    return tuple(table["data"]), tuple(table["optimisation"])


def _timing(table: Mapping[str, Any]) -> Timing:
    check("[timing]", table, get_type_hints(Timing))
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return Timing(**values)


_TASKS: dict[str, Any] = {"marked": Marked, "text": Text}


def task_of(spec: Mapping[str, Any], folder: Path | None = None) -> Marked | Text:
    """The task that plain values describe: those of an experiment file or of a checkpoint."""
    kind = spec.get("kind")
    if kind not in _TASKS:
        raise ValueError(f"[task] kind must be one of {', '.join(_TASKS)}, not {kind!r}")
    numbers = {name: value for name, value in spec.items() if name != "kind"}
    check("[task]", numbers, get_type_hints(_TASKS[kind]))
    numbers = {name: tuple(v) if isinstance(v, list) else v for name, v in numbers.items()}
    if folder is None:
        task: Marked | Text = _TASKS[kind](**numbers)
    elif kind == "marked":
        raise ValueError("the marked-token task draws its own rows; it takes no data")
    else:
        task = Text(**{**numbers, "folder": str(folder)})
    return task


def _task(table: Mapping[str, Any], seed: int, folder: Path | None) -> Marked | Text:
    for name in {"seed", "folder"} & set(table):
        raise ValueError(f"[task] has no {name}: seeds stand in [seeds], a folder is an option")
    if table.get("kind") == "text" and "data" not in table:
        raise ValueError("[task] of kind 'text' needs data: a folder, or a name on the hub")
    return task_of({**table, "seed": seed}, folder)


def _stages_of(
    entry: Mapping[str, Any],
    task: TaskSpec,
    model: Mapping[str, Any],
    seed: int,
    budgets: tuple[float, ...],
    earlier: Iterable[Stage],
) -> list[Stage]:
    """The stages of one [[stage]] entry for one seed: one, or one a budget with `each`."""
    method = entry["method"]
    numbers = {name: value for name, value in entry.items() if name not in _STAGE}

    def find(key: str, only: float | None) -> Stage | None:
        if key not in entry:
            return None
        found = [
            s
            for s in earlier
            if (s.method, s.task.seed, s.seed) == (entry[key], task.seed, seed)
            and s.only in (None, only)  # a specialist comes from the specialist of its budget
        ]
        if len(found) != 1:
            raise ValueError(
                f"stage {method!r} refers to {entry[key]!r}, which is not one earlier stage"
            )
        return found[0]

    made = []
    for only in entry.get("each", [None]):
        how = recipe(entry["recipe"], **numbers) if "recipe" in entry else None
        if how and only is not None:
            how = how.with_changes(budgets=(only, only), select_at=(only,))
        stage = Stage(
            method=method,
            task=task,
            model=model,
            seed=seed,
            budgets=budgets,
            recipe=how,
            score=entry.get("score"),
            baseline=entry.get("baseline"),
            given=entry.get("given", False),
            parent=find("from", only),
            teacher=find("teacher", only),
            only=only,
            latency=entry.get("latency", False),
            keep=entry.get("keep", 0),
            nested=entry.get("nested", False),
            repair=entry.get("repair", False),
            sweep=entry.get("sweep", True),
            made_by=entry.get("made_by", {}),
        )
        check_stage(stage, numbers)
        made.append(stage)
    return made


UNITS = {"heads": ("heads",), "all": KINDS}  # as people ask for them
# Of the tables, where a file names none.
BUDGETS = {"heads": (0.25, 0.5, 0.75), "all": tuple(n / 8 for n in range(1, 9))}
_FILE = {
    "name": str,
    "title": str,
    "beside_paper": str,
    "figure": tuple[str, ...],
    "timing": dict,
    "budgets": tuple[float, ...],
    "units": Literal["heads", "all"],
    "test_rows": int,
    "seeds": dict,
    "task": dict,
    "model": dict,
    "stage": tuple[dict[str, Any], ...],
    "row": tuple[dict[str, Any], ...],
    "claim": tuple[dict[str, Any], ...],
}
_STAGE = {
    "method": str,
    "recipe": str,
    "score": str,
    "baseline": str,
    "given": bool,
    "from": str,
    "teacher": str,
    "model": dict,
    "grid": bool,
    "each": tuple[float, ...],
    "latency": bool,
    "keep": int,
    "nested": bool,
    "repair": bool,
    "sweep": bool,
    "made_by": dict,
}
