"""The paper as data: which study stands behind each of its tables, and what it claims in words."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from apportion.files import check
from apportion.study.claims import Claim, check_claim
from apportion.study.experiment import Experiment, read_toml


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

    def needs_of(self, experiment: Experiment) -> Experiment:
        """The part of the study that it needs, warm starts included."""
        return experiment.of_methods(self.methods_in(experiment))


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
    _files: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)

    def choose(self, names: str | Sequence[str]) -> tuple[PaperTable, ...]:
        """The tables of these names, in the plan's order; all of them if none is named."""
        names = [names] if isinstance(names, str) else names
        known = [table.name for table in self.tables]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"there is no table {unknown[0]!r}; there are {', '.join(known)}")
        return tuple(table for table in self.tables if not names or table.name in names)

    def study(self, name: str) -> Study:
        """The study of a table."""
        return next(study for study in self.studies if study.name == name)

    def read_file(self, name: str) -> dict[str, Any]:
        """A copy of the tables of an experiment file, which is read the first time only."""
        if name not in self._files:
            self._files[name] = read_toml(self.folder / name)
        return copy.deepcopy(self._files[name])


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file, checked."""
    if not path.exists():
        raise ValueError(
            f"there is no plan {path}; run this in a clone of the project, or name another plan"
        )
    data = read_toml(path)
    try:
        return _plan(data, path.parent)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from None


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
    facts = {name: data[name] for name in ("title", "source", "machine")}
    return Plan(folder=folder, studies=tuple(studies), tables=tuple(tables), texts=texts, **facts)


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
