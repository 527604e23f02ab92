"""Experiments: a TOML file → frozen values and the stages that they ask for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, get_type_hints

from apportion.data.marked import Marked
from apportion.data.task import TaskSpec
from apportion.data.text import Text
from apportion.elastic.evaluation import SWEEP
from apportion.files import check
from apportion.method.units import UNITS, check_budget
from apportion.models.encoder import EncoderConfig
from apportion.study.claims import Claim
from apportion.study.protocols import MeasuredRows, Timing
from apportion.study.rules import (
    FIELDS,
    FILE,
    STAGE,
    check_claims,
    check_model,
    kind_of_stage,
    measured_rows,
    taken_by,
    task_of_stage,
)
from apportion.study.stages import Stage, TrainedStage
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
    test_rows: MeasuredRows | None = None  # where not the task's own

    @property
    def model_words(self) -> str:
        """The model in a few words."""
        if "pretrained" in self.model:
            return str(self.model["pretrained"])
        defaults = {f.name: f.default for f in fields(EncoderConfig)}
        shape = {**defaults, **self.model}
        kind = f"{shape['architecture']}, random weights, " if "architecture" in shape else ""
        return f"{kind}{shape['layers']} layers x {shape['heads']} heads, hidden {shape['hidden']}"

    def of_seeds(self, count: int | None) -> Experiment:
        """What is of the first so many optimisation seeds; of all, where no number is given."""
        stages = [stage for stage in self.stages if stage.seed in self.seeds[:count]]
        return replace(self, stages=tuple(stages))

    def of_methods(self, methods: Iterable[str]) -> Experiment:
        """What is of some methods, and all that those come from."""
        wanted: set[str] = set()
        waiting = [stage for method in methods for stage in self.stages_of(method)]
        while waiting:
            stage = waiting.pop()
            if stage.key not in wanted:
                wanted.add(stage.key)
                waiting += stage.sources
        return replace(self, stages=tuple(s for s in self.stages if s.key in wanted))

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
    tables: Mapping[str, Any], folder: Path | None = None, weights: Path | None = None
) -> Experiment:
    """The experiment that the tables of a file describe."""
    check("the file", tables, FILE)
    for needed in ("name", "seeds", "task", "model", "stage"):
        if needed not in tables:
            raise ValueError(f"{needed!r} is missing")
    data_seeds, seeds = _seeds(tables["seeds"])
    task = _task(tables["task"], data_seeds[0], folder)
    shared = _shared(tables, task, weights)
    stages = _stages(tables, task, shared)
    return Experiment(
        name=tables["name"],
        title=tables.get("title", tables["name"]),
        task=task,
        model=tables["model"],
        data_seeds=data_seeds,
        seeds=seeds,
        budgets=shared["budgets"],
        stages=stages,
        rows=_rows(tables.get("row", ())),
        claims=_claims(tables.get("claim", ()), stages),
        paired=tables["seeds"].get("paired", False),
        figure=_figure(tables.get("figure", ()), stages),
        beside_paper=tables.get("beside_paper", ""),
        test_rows=shared["test_rows"],
    )


def _shared(tables: Mapping[str, Any], task: TaskSpec, weights: Path | None) -> dict[str, Any]:
    """What a file says of all its stages at once."""
    units = tables.get("units", "heads")
    return {
        "budgets": tuple(check_budget(b) for b in tables.get("budgets", BUDGETS[units])),
        "kinds": UNITS[units],
        "timing": _timing(tables.get("timing", {})),
        "test_rows": measured_rows(tables, task),
        "answers": tables.get("answers", False),
        "weights": weights,
    }


def _stages(
    tables: Mapping[str, Any], task: Marked | Text, shared: Mapping[str, Any]
) -> tuple[Stage, ...]:
    """The stages of all [[stage]] entries, seed by seed, in the order of the file."""
    stages: list[Stage] = []
    for entry in tables["stage"]:
        check(f"stage {entry.get('method')!r}", entry, STAGE | get_type_hints(Recipe))
        if "method" not in entry:
            raise ValueError("a [[stage]] has no method")
        if any(stage.method == entry["method"] for stage in stages):
            raise ValueError(f"there are two stages of method {entry['method']!r}")
        model = {**tables["model"], **entry.get("model", {})}
        check_model(model, task, shared["weights"])
        own = task_of_stage(entry, task, model)
        cells = _cells(tables["seeds"], whole_grid=entry.get("grid", False))
        if not 1 <= entry.get("seeds", 1) <= len(cells):
            raise ValueError(
                f"stage {entry['method']!r} is of the first {entry['seeds']} seeds; there are "
                f"{len(cells)}"
            )
        for data_seed, seed in cells[: entry.get("seeds")]:
            cell = {**shared, "task": replace(own, seed=data_seed), "seed": seed, "model": model}
            stages += _stages_of(entry, cell, stages)
    if len({stage.key for stage in stages}) < len(stages):
        raise ValueError("two of the stages are the same but for their names")
    return tuple(stages)


def _cells(table: Mapping[str, Any], *, whole_grid: bool) -> list[tuple[int, int]]:
    """Pairs of a data seed and an optimisation seed; the first data seed's, where not all."""
    if table.get("paired"):
        return list(zip(table["data"], table["optimisation"], strict=True))
    return list(product(table["data"] if whole_grid else table["data"][:1], table["optimisation"]))


def _stages_of(
    entry: Mapping[str, Any], cell: Mapping[str, Any], earlier: Sequence[Stage]
) -> list[Stage]:
    """The stages of one [[stage]] entry for one seed: one, or one per budget with `each`."""
    kind = kind_of_stage(entry, cell["model"])
    same_seeds = [s for s in earlier if (s.task.seed, s.seed) == (cell["task"].seed, cell["seed"])]
    as_it_stands = {name: entry[name] for name in taken_by(kind) & set(entry) & set(STAGE)}
    made = []
    for only in entry.get("each", [None]):
        built: dict[str, Any] = {
            FIELDS.get(key, key): _source(entry, key, only, same_seeds, cell["task"])
            for key in ("from", "teacher")
            if key in entry
        }
        if kind is TrainedStage:
            built |= {"recipe": _recipe(entry, only), "only": only}
        made.append(kind(**{**as_it_stands, **cell, **built}))
    return made


def _recipe(entry: Mapping[str, Any], only: float | None) -> Recipe:
    """The recipe of a [[stage]] with its numbers; that of a specialist is for its budget alone."""
    numbers = {name: value for name, value in entry.items() if name not in STAGE}
    chosen = recipe(entry["recipe"], **numbers)
    if only is None:
        return chosen
    return chosen.with_changes(budgets=(only, only), select_at=(only,))


def _source(
    entry: Mapping[str, Any],
    key: str,
    only: float | None,
    earlier: Iterable[Stage],
    task: TaskSpec,
) -> Stage:
    """The stage that a [[stage]] refers to; a specialist's is the specialist of its budget."""
    found = [s for s in earlier if s.method == entry[key] and s.only in (None, only)]
    if len(found) != 1:
        raise ValueError(
            f"stage {entry['method']!r} refers to {entry[key]!r}, which is not one earlier stage"
        )
    if found[0].task != task:
        raise ValueError(
            f"stage {entry['method']!r} refers to {entry[key]!r}, which reads other tokens of texts"
        )
    return found[0]


def _rows(tables: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    for table in tables:
        check("[[row]]", table, get_type_hints(Row))
    return tuple(Row(**table) for table in tables)


def _claims(tables: Iterable[Mapping[str, Any]], stages: Sequence[Stage]) -> tuple[Claim, ...]:
    for table in tables:
        check("[[claim]]", table, get_type_hints(Claim))
    claims = tuple(Claim(**{**table, "over": tuple(table.get("over", ()))}) for table in tables)
    check_claims(claims, stages)
    return claims


def _figure(methods: Iterable[str], stages: Iterable[Stage]) -> tuple[str, ...]:
    unknown = set(methods) - {stage.method for stage in stages}
    if unknown:
        raise ValueError(f"figure names {', '.join(sorted(unknown))}, which is no stage")
    return tuple(methods)


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


# Of the tables, where a file names none.
BUDGETS = {"heads": (0.25, 0.5, 0.75), "all": tuple(n / 8 for n in range(1, 9))}
