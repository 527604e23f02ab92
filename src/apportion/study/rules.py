"""What an experiment file may ask for: complaints come before anything is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from apportion.data.marked import Marked
from apportion.data.task import TaskSpec
from apportion.data.text import Text
from apportion.files import check
from apportion.models.encoder import EncoderConfig
from apportion.models.sites import ARCHITECTURES
from apportion.study.claims import TIMED, Claim, check_claim
from apportion.study.protocols import MeasuredRows
from apportion.study.stages import BaselineStage, GivenStage, ScoredStage, Stage, TrainedStage
from apportion.training.recipes import Recipe

_SIZES = ("layers", "heads", "hidden", "feedforward")
_SHAPE = {
    name: hint
    for name, hint in get_type_hints(EncoderConfig).items()
    if name not in ("vocabulary", "length", "classes", "model_type")  # those are not to choose
}

# The keys of a file, and of a [[stage]] in it beside the numbers of its recipe.
FILE = {
    "name": str,
    "title": str,
    "beside_paper": str,
    "figure": tuple[str, ...],
    "timing": dict,
    "budgets": tuple[float, ...],
    "units": Literal["heads", "all"],
    "test_rows": int | str,
    "test_seed": int,
    "answers": bool,
    "seeds": dict,
    "task": dict,
    "model": dict,
    "stage": tuple[dict[str, Any], ...],
    "row": tuple[dict[str, Any], ...],
    "claim": tuple[dict[str, Any], ...],
}
STAGE = {
    "method": str,
    "recipe": str,
    "score": str,
    "baseline": str,
    "given": bool,
    "from": str,
    "teacher": str,
    "model": dict,
    "task": dict,
    "grid": bool,
    "each": tuple[float, ...],
    "latency": bool,
    "keep": int,
    "nested": bool,
    "seeds": int,  # of the first so many, where not of all
    "search": bool,
    "repair": bool,
    "tune": int,
    "seconds": float,
    "sweep": bool,
    "made_by": dict,
}


# Keys of [task] that a [[stage]] may set: what is read of a text. Its rows are those of the file.
_READ = {"length": int, "tail": int}


def task_of_stage(
    entry: Mapping[str, Any], task: Marked | Text, model: Mapping[str, Any]
) -> Marked | Text:
    """The task of the file, as one [[stage]] of it reads the texts."""
    if "task" not in entry:
        return task
    where = f"[[stage]] {entry['method']!r} task"
    check(where, entry["task"], _READ)
    if not isinstance(task, Text) or "pretrained" not in model:
        raise ValueError(f"{where} needs texts, and the tokenizer of a pretrained model")
    return replace(task, **entry["task"])


def check_model(model: Mapping[str, Any], task: TaskSpec, weights: Path | None) -> None:
    """Complains of a [model] that could not be built, before anything is."""
    if "pretrained" in model:
        check("[model]", model, {"pretrained": str, "digest": str})
        if not isinstance(task, Text):
            raise ValueError("[model] pretrained needs a [task] of kind 'text'")
        return
    if weights is not None:
        raise ValueError("[model] has no pretrained weights; their folder can't be given")
    if "architecture" in model:
        sizes = dict.fromkeys((*_SIZES, "vocabulary"), int)
        check("[model]", model, {"architecture": str, **sizes})
        missing = [name for name in _SIZES if name not in model]
        if missing:
            raise ValueError(f"[model] of an architecture needs {', '.join(missing)}")
        known = sorted(set(ARCHITECTURES) - {EncoderConfig.model_type, "vit"})  # those of texts
        if model["architecture"] not in known:
            raise ValueError(
                f"[model] architecture must be one of {', '.join(known)}, "
                f"not {model['architecture']!r}"
            )
        return
    check("[model]", model, _SHAPE)
    EncoderConfig(vocabulary=1, length=task.length, **model)


def measured_rows(tables: Mapping[str, Any], task: TaskSpec) -> MeasuredRows | None:
    """The test rows that a file asks for in place of the task's own.

    Answers of several data seeds are compared row by row, so those need the same rows.
    """
    rows, seed = tables.get("test_rows"), tables.get("test_seed")
    if rows is None and seed is not None:
        raise ValueError("test_seed draws test_rows, and the file does not say how many")
    if rows is not None and not isinstance(task, Text):
        raise ValueError(f"test_rows are two or more texts, not {rows} rows of this task")
    measured = None if rows is None else MeasuredRows(rows, seed)
    several = len(tables["seeds"]["data"]) > 1
    if tables.get("answers") and several and not (measured and measured.same_for_all):
        raise ValueError(
            "answers needs the same test rows for all data seeds: "
            'test_rows = "all", or a number of them with a test_seed'
        )
    return measured


# The kinds of stages, by the key of a [[stage]] that asks for one, and what else each one takes.
_KINDS: dict[str, tuple[type[Stage], str]] = {
    "recipe": (
        TrainedStage,
        "has a recipe, and a floor with it; keep, nested and repair are of scores",
    ),
    "score": (
        ScoredStage,
        "has a score: it needs 'from', and no more, or a [model] of an architecture with random "
        "weights",
    ),
    "baseline": (BaselineStage, "is a baseline: it needs nothing else"),
    "given": (GivenStage, "is a model as given: it needs nothing else"),
}
# Keys that every kind takes.
_OF_ALL = {"method", "model", "task", "grid", "seeds", "sweep", "made_by"}
FIELDS = {"from": "parent", "each": "only"}  # keys that a stage has under another name


def taken_by(kind: type[Stage]) -> set[str]:
    """The values that a kind of stages is made of."""
    return {field.name for field in fields(kind) if field.init}


def kind_of_stage(entry: Mapping[str, Any], model: Mapping[str, Any]) -> type[Stage]:
    """The kind that a [[stage]] asks for; complains of what that kind does not take."""
    asked = [key for key in _KINDS if entry.get(key) not in (None, False)]
    if len(asked) != 1:
        raise ValueError(
            f"stage {entry['method']!r} needs one of a recipe, a score, a baseline or given = true"
        )
    kind, takes = _KINDS[asked[0]]
    own = taken_by(kind) - taken_by(Stage)
    numbers = {field.name for field in fields(Recipe)}
    taken = {*_OF_ALL, *asked, *own, *(numbers if kind is TrainedStage else ())}
    others = [key for key in entry if FIELDS.get(key, key) not in taken]
    startless = kind is ScoredStage and "from" not in entry and "architecture" not in model
    if startless or any(key in numbers or entry[key] for key in others):
        raise ValueError(f"stage {entry['method']!r} {takes}")
    return kind


def check_claims(claims: Iterable[Claim], stages: Iterable[Stage]) -> None:
    """Complains of a claim that no record could ever decide."""
    of_method = {stage.method: stage for stage in stages}
    for claim in claims:
        where = f"[[claim]] {claim.says!r}"
        check_claim(claim, "the experiment")
        methods = [method for method in (claim.method, claim.against) if method]
        for method in methods:
            if method not in of_method:
                raise ValueError(f"{where} is of {method!r}, which is no stage")
        if claim.measure in TIMED and not all(of_method[method].latency for method in methods):
            raise ValueError(f"{where} is of time, and its stage is not timed")
        if claim.measure == "training_seconds" and not all(
            of_method[method].recipe for method in methods
        ):
            raise ValueError(f"{where} is of training, and a stage of it has none")
        if claim.protocol != "padded" and not isinstance(of_method[claim.method].task, Text):
            raise ValueError(f"{where}: timing of texts, and no other, has a protocol")
