"""Presets: the experiments that `apportion train` and `apportion convert` write and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomlkit

from apportion.data.sources import Source, read_source
from apportion.data.text import Drawn, Text, classes_of, draw
from apportion.data.unlabelled import MOST, UNLABELLED
from apportion.elastic.pairing import check_axis
from apportion.elastic.vouching import AGREEMENT, FEWEST
from apportion.models.hub import load_model, load_tokenizer, weights_files_digest
from apportion.study.experiment import BUDGETS, Experiment, experiment_of
from apportion.training.course import Kind, steps
from apportion.training.tuning import ROWS


@dataclass(frozen=True)
class Preset:
    """An experiment as the tables of its file, with what people should know of it."""

    command: str
    tables: dict[str, Any]
    reasons: Mapping[str, str]  # of a stage, by its method
    warning: str = ""
    agreement: float = AGREEMENT  # with the whole model, of every budget in a converted one's range

    def experiment(self) -> Experiment:
        """The experiment that the tables describe."""
        return experiment_of(self.tables)

    def to_toml(self) -> str:
        """The file for `apportion run`, with comments."""
        document = tomlkit.document()
        says = f"Written by `apportion {self.command}`; `apportion run` takes it too."
        document.add(tomlkit.comment(says))
        for name, value in self.tables.items():
            if name != "stage":
                document.add(name, tomlkit.item(value))
        if "data" in self.tables["task"]:
            document["task"]["digest"].comment("of its rows: other rows are not taken")
        if "unlabelled" in self.tables["task"]:
            document["task"]["unlabelled"].comment("rows at most; their labels are not read")
        stages = tomlkit.aot()
        for entry in self.tables["stage"]:
            stage = tomlkit.table()
            for line in self.reasons.get(entry["method"], "").splitlines():
                stage.add(tomlkit.comment(line))
            stage.update(entry)
            stages.append(stage)
        document.add("stage", stages)
        return tomlkit.dumps(document)


def conversion_preset(
    model: str,
    data: str,
    *,
    text: Sequence[str] = ("text",),
    label: str = "label",
    length: int = 128,
    rows: int,
    held_out: int,
    units: str = "all",
    agreement: float = AGREEMENT,
    tune: int = ROWS,
    seconds: float | None = None,
    data_seed: int = 1,
) -> Preset:
    """A knob for a fine-tuned model, and at most so many rows to make and to measure it with.

    It learns its own answers to so many views of texts (`tune`; 0: none). All of it takes as long
    as it takes, or about so many `seconds`.
    """
    source = read_source(data, text, label)
    spec = Text(data, text=tuple(text), label=label, length=length, seed=data_seed)
    spec = _at_most(spec, source, rows, held_out)
    drawn = draw(spec, source)
    tuned = {"tune": tune} if tune else {}
    tables = {
        "name": "experiment",
        "title": _title(data),
        "budgets": [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875],
        "units": units,
        "task": _text_table(spec, drawn),
        "model": model_table(model, length, classes_of(source), trained=True),
        "seeds": {"data": [data_seed], "optimisation": [7]},
        "timing": {
            "budgets": [0.125, 0.25, 0.5, 0.75],
            "batch": 8,
            "rows": 16,
            "repeats": 5,
            "forms": ["fused", "skip", "cut"],
            "predictions": False,
        },
        "stage": [
            {"method": "dense", "given": True},
            {"method": "converted", "from": "dense", **_ordered(seconds), **tuned, "latency": True},
        ],
    }
    why = "Units in the order of a score; what stays makes up for what a budget switches off."
    why += "\nThen all budgets learn what the model itself answers." if tune else ""
    warning = "" if source.test else _NO_TEST_ROWS
    if source.test and not (source.validation or spec.validation_from):
        warning = _FEW_TEST_ROWS
    return Preset("convert", tables, {"converted": why}, warning, agreement)


def training_preset(
    data: str | None,
    pretrained: str | None,
    *,
    text: Sequence[str] = ("text",),
    label: str = "label",
    length: int | None = None,
    rows: int | None = None,
    held_out: int | None = None,
    shape: Mapping[str, int] | None = None,
    epochs: int | None = None,
    budgeted_epochs: int | None = None,
    lam: float | None = None,
    beta: float | None = None,
    units: str = "heads",
    axis: str = "width",
    unlabelled: str | None = None,
    unlabelled_rows: int | None = None,
    seconds: float | None = None,
    seed: int = 7,
    data_seed: int = 1,
) -> Preset:
    """A dense start, then budgets: on texts, or on marked tokens where there is no data.

    A pretrained model or an encoder of our own is the start; numbers that are not given are those
    of the kind of task and model. Texts without labels are a file, or "train": training rows that
    are not drawn. Where all units are trained, they are the folder's unlabelled.csv by default, and
    search and repair may be bounded to about so many `seconds`.
    """
    kind: Kind = ("pretrained" if pretrained else "text") if data else "marked"
    if check_axis(axis) != "width" and (kind != "pretrained" or units != "all"):
        raise ValueError(
            f"the axis {axis} drops tokens, which needs a pretrained encoder and all units: "
            "--model, --units all"
        )
    if length is None:
        length = 32 if kind == "marked" else 128
    more = 0
    if data is None:
        count = 4096 if rows is None else rows
        others = max(2, count // 4) if held_out is None else held_out
        title = f"Marked tokens, length {length}"
        task: dict[str, Any] = {"kind": "marked", "length": length}
        task |= {"distractors": max(1, length // 8)}
        task |= {"train": count, "validation": others, "test": others}
    else:
        spec = Text(data, text=tuple(text), label=label, length=length, seed=data_seed)
        spec = replace(spec, train=rows, validation=held_out, test=held_out)
        if units == "all" and not unlabelled and (Path(data).expanduser() / UNLABELLED).exists():
            unlabelled = "file"
        if unlabelled_rows and not unlabelled:
            raise ValueError(
                f"{data} has no {UNLABELLED} to take {unlabelled_rows:,} texts from; name a file "
                "of them, or train: training rows that are not drawn"
            )
        if unlabelled and unlabelled_rows != 0:
            most = MOST if unlabelled_rows is None else unlabelled_rows
            spec = replace(spec, unlabelled=most, unlabelled_from=unlabelled)
        drawn = draw(spec, read_source(data, text, label))
        title, task = _title(data), _text_table(spec, drawn)
        more = len(drawn.unlabelled.texts) if drawn.unlabelled else 0
    if pretrained and data:
        model = model_table(pretrained, length, drawn.classes)
    else:
        model = {**_SHAPES[kind], **(shape or {})}
    dense, nested = (
        {"recipe": step.pop("name"), **step}
        for step in steps(
            kind, task["train"], unlabelled=more, epochs=epochs, nested_epochs=budgeted_epochs
        )
    )
    start = {"method": "dense", **dense}
    if units == "all":
        nested |= {"axis": axis} if axis != "width" else {}
        stages, timing = _nested(kind, nested, seconds)
        reasons = _NESTED_REASONS | ({} if kind == "pretrained" else {"nested": _OWN_NUMBERS})
    else:
        weights = {"lam": lam, "beta": beta}
        given = {name: value for name, value in weights.items() if value is not None}
        stages, timing = _gated(kind, {"epochs": nested["epochs"], **_WEIGHTS[kind], **given})
        reasons = _GATED_REASONS
    command = {"marked": "train", "text": "train --data", "pretrained": "train --model"}[kind]
    tables = {
        "name": "experiment",
        "title": title,
        "budgets": list(BUDGETS[units]),
        "units": units,
        "task": task,
        "model": model,
        "seeds": {"data": [data_seed], "optimisation": [seed]},
        **({"timing": timing} if timing else {}),
        "stage": [start, *stages],
    }
    return Preset(command, tables, reasons)


def model_table(
    name: str, length: int, classes: Sequence[str], *, trained: bool = False
) -> dict[str, Any]:
    """What the file says of a pretrained model; loads it, so that a bad one is found now."""
    load_tokenizer(name, length)
    load_model(name, classes, seed=0, trained=trained)
    digest = weights_files_digest(name)
    return {"pretrained": name, **({"digest": digest} if digest else {})}


_NO_TEST_ROWS = (
    "there are no test rows: budgets are measured on training rows, and if the model was trained "
    "on those, it does better on them than it would on others"
)
_FEW_TEST_ROWS = (
    "training rows vouch for budgets: if the model was trained on them, it agrees with itself more "
    f"than it would elsewhere; a val.csv, or {2 * FEWEST} more test rows, would do better"
)
_GATED_REASONS = {
    "gradient": "Gates start in the order of a score, and learn from the dense model."
}
_NESTED_REASONS = {
    "repaired": "Heads and feed-forward blocks in one order, by a score and a search; what stays "
    "makes up for\nwhat is switched off.",
    "nested": "All budgets learn from the dense model, one in each step, about views of the texts: "
    "the recipe of\nthe study on AG News (experiments/nested-ag-news.toml).",
}
_OWN_NUMBERS = (
    "All budgets learn from the dense model, several of them in each step. Numbers of an encoder "
    "of our\nown; no study was made of it."
)
_SHAPES: dict[Kind, dict[str, Any]] = {
    "marked": {"layers": 2, "heads": 8, "hidden": 64, "feedforward": 128},
    "text": {
        **{"layers": 4, "heads": 4, "hidden": 64, "feedforward": 256},
        **{"pool": "mean", "dropout": 0.3},
    },
}
_WEIGHTS: dict[Kind, dict[str, float]] = {
    "marked": {"lam": 0.05, "beta": 4.0},
    "text": {"lam": 0.02, "beta": 2.0},
    "pretrained": {"lam": 0.02, "beta": 2.0},
}


def _ordered(seconds: float | None) -> dict[str, Any]:
    """What a stage says that puts all units in one order, and how long that may take."""
    ordered = {"score": "fisher", "nested": True, "search": True, "repair": True}
    return ordered if seconds is None else {**ordered, "seconds": float(seconds)}


def _nested(
    kind: Kind, nested: Mapping[str, Any], seconds: float | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The stages after the dense one that train one order of all units, and their timing."""
    stages: list[dict[str, Any]] = [
        {"method": "repaired", "from": "dense", **_ordered(seconds)},
        {"method": "nested", "from": "repaired", "teacher": "dense", **nested},
    ]
    stages[-1] |= {"sweep": False, "latency": True}
    timing: dict[str, Any] = {"budgets": [0.125, 0.25, 0.375, 0.5, 0.75], "forms": ["skip", "cut"]}
    if kind == "pretrained":
        timing |= {"batch": 8, "rows": 16, "repeats": 11, "single": True, "short": 32}
        timing |= {"forms": ["fused", "skip", "cut"], "predictions": False}
    return stages, timing


def _gated(kind: Kind, numbers: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The stages after the dense one that train gates of heads, and their timing."""
    budgeted = {"method": "budgeted", "from": "dense", "recipe": "budgeted", **numbers}
    adapted: dict[str, Any] = {"method": "adapted", "from": "budgeted", "teacher": "budgeted"}
    adapted |= {"recipe": "adapt", "latency": True}
    if kind == "marked":
        return [budgeted, adapted], {}
    budgeted["teacher"] = "dense"
    if kind == "text":
        budgeted |= {"lr": 1e-3, "alpha": 0.8, "word_dropout": 0.3}
        adapted |= {"word_dropout": 0.3}
        return [budgeted, adapted], {}
    scored = {"method": "gradient", "from": "dense", "score": "squared-gradient"}
    shared = {"batch_size": 16, "budgets": [0.1, 1.0]}
    budgeted |= {"from": "gradient", **shared, "lr": 5e-5, "gate_lr": 5e-2, "warmup": 0.1}
    budgeted |= {"sweep": False}
    adapted |= {**shared, "lr": 2e-5, "gate_lr": 0.0}
    timing = {"batch": 8, "rows": 64, "repeats": 7, "single": True, "forms": ["hard", "cut"]}
    return [scored, budgeted, adapted], {**timing, "predictions": False}


def _title(data: str) -> str:
    return Path(data).name or data


def _text_table(spec: Text, drawn: Drawn) -> dict[str, Any]:
    """What the file says of some texts: the digest of all rows, and how many are drawn."""
    unlabelled = {
        "unlabelled": spec.unlabelled,
        "unlabelled_from": spec.unlabelled_from,
        "unlabelled_digest": drawn.unlabelled_digest,
    }
    return {
        "kind": "text",
        "data": spec.data,
        "digest": drawn.digest,
        "text": list(spec.text),
        "label": spec.label,
        "length": spec.length,
        **{name: len(rows) for name, rows in drawn.rows.items()},
        **({"validation_from": spec.validation_from} if spec.validation_from else {}),
        **{name: value for name, value in unlabelled.items() if value is not None},
    }


def _at_most(spec: Text, source: Source, rows: int, held_out: int) -> Text:
    """A text task with as many rows as asked for, or as there are.

    Validation rows choose how far the repair goes, then others of them vouch for budgets. The model
    may know training rows by heart, so they come from the test file if it has more than are
    measured on.
    """
    left, taken = len(source.train.rows), []
    for part, share in ((source.validation, 3), (source.test, 10)):
        taken.append(min(held_out, len(part.rows) if part else max(2, left // share)))
        left -= 0 if part else taken[-1]
    others = len(source.test.rows) - taken[1] if source.test else 0
    if source.validation is None and others >= 2 * FEWEST:
        spec = replace(spec, validation_from="test")
        taken[0], left = min(2 * held_out, others), len(source.train.rows)
    return replace(spec, train=min(rows, left), validation=taken[0], test=taken[1])
