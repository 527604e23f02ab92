"""Planning: which studies of the paper are run this time, on what, and how long that takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from apportion.data.sources import read_source
from apportion.extras import install_command
from apportion.models.hub import PACKAGED
from apportion.study import records
from apportion.study.driver.local_driver import unfinished
from apportion.study.driver.work import Piece, Work, pieces_of
from apportion.study.experiment import Experiment, current, experiment_of
from apportion.study.paper import PaperTable, Plan, Study
from apportion.training.recipes import RECIPES

QUICK = "Quick: far fewer rows and epochs and one seed, to see that all of it runs; no evidence."


@dataclass(frozen=True)
class Settings:
    """How the studies are run this time."""

    quick: bool = False
    hub: bool = False  # the paper's own models and data, which are downloaded
    device: str = "cpu"
    data: Mapping[str, Path] = field(default_factory=dict)  # folders of texts, by the plan's names
    digests: Mapping[str, str] = field(default_factory=dict)  # of the rows in those folders
    models: Mapping[str, Path] = field(default_factory=dict)
    stand_ins: Mapping[str, Path] = field(default_factory=dict)  # texts, where there is no folder

    def file(self, study: Study) -> str:
        """The experiment file that is run for a study."""
        return study.real if self.hub and study.real else study.file

    def lacks(self, study: Study) -> list[str]:
        """The options that a study can't be run without, as people would type them."""
        if self.hub:
            return []
        lacking = []
        if study.data and study.data not in (*self.data, *self.stand_ins):
            lacking.append(f"--data {study.data}=FOLDER")
        if study.model and study.model not in self.models and not self.quick:
            lacking.append(f"--model {study.model}=FOLDER")
        return lacking

    def differs(self, plan: Plan, study: Study) -> str:
        """What ran in place of what the paper has."""
        model, data, recipe = study.model_is, study.data_is, study.recipe_is
        if self.hub and study.real:
            model = recipe = ""
        elif self.quick and study.model and study.model not in self.models:
            model = "a BERT of random weights in place of the pretrained model"
        if study.data in self.stand_ins:
            data = "docstrings of installed packages in place of the texts"
        elif study.data in self.data and not self._has_own_rows(plan, study):
            data = f"texts of a folder (digest {self.digests[study.data]})"
        elif study.data and not self.hub:
            data = plan.texts[study.data].here
        parts = "; ".join(part for part in (model, data, recipe) if part)
        return f"Here: {parts}." if parts else ""

    def _has_own_rows(self, plan: Plan, study: Study) -> bool:
        """Whether the rows in its folder are those of the study's own records."""
        pinned = plan.read_file(study.file)["task"].get("digest")
        return bool(self.digests[study.data] == pinned)


@dataclass(frozen=True)
class Rerun:
    """A study as it is run this time: its experiment, and the records that are there."""

    study: Study
    file: str
    experiment: Experiment
    records: Sequence[Mapping[str, Any]] = ()
    differs: str = ""  # what runs in place of what the paper has
    lacks: tuple[str, ...] = ()  # what the rest of it can't be run without

    def with_records(self, results: Path) -> Rerun:
        """This, with the records that are in a folder now."""
        have = records.read(results / f"{self.study.name}.jsonl")
        return replace(self, records=current(self.experiment, have))


def check_settings(
    plan: Plan, settings: Settings, *, names: str | Sequence[str], out: Path
) -> Settings:
    """The settings, checked against the plan, with digests and stand-ins for the named tables.

    Where a quick run has no texts, stand-ins are to be written to a folder inside `out`.
    """
    if settings.quick and settings.hub:
        raise ValueError("--quick runs on what is here, --hub downloads: choose one of them")
    _check_device(settings.device)
    _check_folders("--data", settings.data, plan.texts)
    _check_folders("--model", settings.models, {s.model for s in plan.studies if s.model})
    sources = {n: read_source(str(f), ("text",), "label") for n, f in settings.data.items()}
    wanted = {plan.study(table.study).data for table in plan.choose(names)} - set(sources)
    stand_ins = [name for name in plan.texts if settings.quick and name in wanted]
    return replace(
        settings,
        digests={name: source.digest() for name, source in sources.items()},
        stand_ins={name: out / "data" / name for name in stand_ins},
    )


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"--device {device!r} is none that torch knows") from None
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind != "cpu" and (here is None or here.type != kind):
        raise ValueError(f"--device {device!r}: there is none here")


def _check_folders(option: str, given: Mapping[str, Path], known: Iterable[str]) -> None:
    for name, folder in given.items():
        if name not in known:
            wanted = " or ".join(f"{one}=FOLDER" for one in sorted(known))
            raise ValueError(f"{option} takes {wanted}, not '{name}={folder}'")
        if not folder.is_dir():
            raise ValueError(f"{option} {name}: there is no folder {folder}")


def plan_reruns(
    plan: Plan, settings: Settings, *, names: str | Sequence[str] = (), results: Path
) -> dict[str, Rerun]:
    """The studies of the tables of these names, in the plan's order, with their records.

    If no table is named, all stages are wanted; else those that the tables need.
    """
    reruns = {}
    for study in plan.studies:
        tables = [table for table in plan.choose(names) if table.study == study.name]
        if not tables:
            continue
        experiment = study_experiment(plan, study, settings)
        if names:
            needed = {m for table in tables for m in table.methods_in(experiment)}
            experiment = experiment.of_methods(needed)
        reruns[study.name] = Rerun(
            study,
            settings.file(study),
            experiment,
            differs=settings.differs(plan, study),
            lacks=(*settings.lacks(study), *lacking_extras(experiment)),
        ).with_records(results)
    return reruns


def study_experiment(plan: Plan, study: Study, settings: Settings) -> Experiment:
    """The experiment of a study as it is run this time."""
    file = settings.file(study)
    data = plan.read_file(file)
    texts = settings.data.get(study.data) or settings.stand_ins.get(study.data)
    weights = settings.models.get(study.model)
    if "digest" in data["task"]:
        if study.data in settings.data:
            data["task"]["digest"] = settings.digests[study.data]
        elif study.data in settings.stand_ins or settings.hub:
            del data["task"]["digest"]
    if settings.quick:
        _reduce(data, study.quick, without_model=bool(study.model) and weights is None)
    try:
        made = experiment_of(data, texts, weights)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from None
    return replace(made, stages=tuple(replace(s, device=settings.device) for s in made.stages))


def _reduce(data: dict[str, Any], quick: Mapping[str, Any], without_model: bool) -> None:
    """Makes an experiment file ask for less: smaller splits, fewer epochs, the first seeds."""
    data["title"] = f"{data.get('title', data['name'])} (quick)"
    data["beside_paper"] = f"{QUICK} {data.get('beside_paper', '')}".strip()
    data["task"] |= quick.get("task", {})
    for kind in ("data", "optimisation"):
        data["seeds"][kind] = data["seeds"][kind][:1]
    if without_model:
        data["model"] = dict(quick["model"])
    data["timing"] = data.get("timing", {}) | quick.get("timing", {})
    for stage in data["stage"]:
        if "recipe" in stage:
            full = stage.get("epochs", RECIPES[stage["recipe"]].epochs)
            # The square root keeps those apart that differ in nothing but their epochs.
            stage["epochs"] = min(full, quick.get("epochs", math.ceil(math.sqrt(full))))


def lacking_extras(experiment: Experiment) -> list[str]:
    """What has to be installed before an experiment can run, as people would type it."""
    models = [stage.model for stage in experiment.stages]
    needed = {
        "hub": any({"architecture", "pretrained"} & set(model) for model in models),
        "minilm": any(model.get("pretrained") in PACKAGED for model in models),
        "study": any(stage.baseline for stage in experiment.stages),
    }
    modules = {"hub": "transformers", "minilm": PACKAGED["minilm"][0], "study": "sklearn"}
    return [
        install_command(extra)
        for extra, wanted in needed.items()
        if wanted and find_spec(modules[extra]) is None
    ]


def work_of(
    plan: Plan, reruns: Iterable[Rerun], *, tables: Sequence[PaperTable], jobs: int
) -> Work:
    """What there is to do for some tables, and how long it took where the plan's records are of."""
    pieces: dict[str, set[Piece]] = {}
    done: set[Piece] = set()
    expected: dict[Piece, float] = {}
    for rerun in reruns:
        experiment, study = rerun.experiment, rerun.study
        everything = pieces_of(experiment.stages)
        to_run, to_time = unfinished(experiment, rerun.records)
        left = {Piece(s.key) for s in to_run} | {Piece(s.key, timed=True) for s in to_time}
        done |= everything - left
        if left:
            expected |= seconds_of_pieces(
                records.read(plan.folder / "results" / f"{study.name}.jsonl")
            )
        of_tables = {
            table.title: pieces_of(table.needs_of(experiment).stages)
            for table in tables
            if table.study == study.name
        }
        pieces |= of_tables
        beyond = everything.difference(*of_tables.values())
        if beyond:
            pieces[f"beyond the paper, {study.name}"] = beyond
    return Work(pieces, done, expected, jobs)


def seconds_of_pieces(have: Iterable[Mapping[str, Any]]) -> dict[Piece, float]:
    """How long each piece of work took, where records say it."""
    return {
        Piece(record["stage"], timed=record["kind"] == "timing"): seconds_of(record)
        for record in have
        if record.get("kind") in ("stage", "timing") and "stage" in record
    }


def seconds_of(record: Mapping[str, Any]) -> float:
    """The wall-clock of a stage, or of its training where its record has no more."""
    return float(record.get("seconds") or (record.get("training") or {}).get("seconds", 0.0))
