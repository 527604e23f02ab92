"""Records → the reproduction: each table of the paper beside what ran here, with verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apportion.study.completion import is_done
from apportion.study.driver.work import Piece, pieces_of
from apportion.study.paper import PaperTable, Plan
from apportion.study.planning import (
    Rerun,
    Settings,
    lacking_extras,
    plan_reruns,
    seconds_of,
    seconds_of_pieces,
)
from apportion.study.report.claim_tables import (
    BY_CONSTRUCTION,
    HOW_CONSTRUCTED,
    HOW_JUDGED,
    VERDICTS,
    claim_table,
    count_verdicts,
)
from apportion.study.report.drawing import Picture
from apportion.study.report.figures import study_figures
from apportion.study.report.query import mean_sd, methods_of, select
from apportion.study.report.study_tables import study_tables
from apportion.study.report.table import Table


@dataclass(frozen=True)
class Section:
    """A table of the paper, and everything that stands beside it."""

    table: PaperTable
    rerun: Rerun
    claims: Table
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    done: int
    stages: int

    @property
    def where(self) -> str:
        """Where it stands in the paper, what was run for it, and what is missing."""
        text = f"In the paper: {self.table.place}. Experiment: {self.rerun.file}; "
        text += f"{self.done} of {self.stages} stages have records."
        if self.done < self.stages and self.rerun.lacks:
            text += f" The rest needs {' and '.join(self.rerun.lacks)}."
        return f"{text} {self.rerun.differs}".strip()


def sections_of(
    tables: Sequence[PaperTable], reruns: Mapping[str, Rerun], *, quick: bool = False
) -> list[Section]:
    """What some tables of the paper show, from the records that are there."""
    shown = {name: _shown(rerun, quick) for name, rerun in reruns.items()}
    sections = []
    for table in tables:
        rerun = reruns[table.study]
        by_name, pictures = shown[table.study]
        stages = table.needs_of(rerun.experiment).stages
        ended = [record for record in rerun.records if record["kind"] == "stage"]
        sections.append(
            Section(
                table,
                rerun,
                claim_table(table, rerun.experiment, rerun.records),
                (*_printed(table), *(by_name[name] for name in table.shows if name in by_name)),
                tuple(pictures[name] for name in table.figures if name in pictures),
                sum(is_done(stage, ended) for stage in stages),
                len(stages),
            )
        )
    return sections


def _shown(rerun: Rerun, quick: bool) -> tuple[dict[str, Table], dict[str, Picture]]:
    """The tables and figures of a study by their names; none before there are records."""
    if not select(rerun.records, kind="point"):
        return {}, {}
    pictures = study_figures(rerun.experiment, rerun.records)
    if quick:
        pictures = [picture.marked("quick run, no evidence") for picture in pictures]
    tables = study_tables(rerun.experiment, rerun.records)
    return {table.name: table for table in tables}, {pic.name: pic for pic in pictures}


def _printed(table: PaperTable) -> list[Table]:
    """What the paper prints where ours is no table with columns for both."""
    if not table.printed:
        return []
    columns, *rows = table.printed
    return [Table("printed", "As the paper prints it", columns, tuple(rows))]


def reproduction_tables(sections: Sequence[Section]) -> list[Table]:
    """What is said of all sections together: verdicts, coverage, and how long it took."""
    studies = {section.table.study: section.rerun for section in sections}
    return [
        verdict_table(sections),
        all_claims_table(sections),
        constructed_table(sections),
        coverage_table(sections),
        time_table(studies),
        stage_table(studies),
    ]


def verdict_table(sections: Sequence[Section]) -> Table:
    """How many claims hold, table by table."""
    rows = []
    for section in sections:
        counts = count_verdicts([section.claims])
        if section.claims.rows:
            rows.append((section.table.title, *(str(counts[v]) for v in VERDICTS)))
    total = count_verdicts([section.claims for section in sections])
    rows.append(("all", *(str(total[v]) for v in VERDICTS)))
    note = f"{HOW_JUDGED} {HOW_CONSTRUCTED}"
    return Table("verdicts", "The paper's claims", ("table", *VERDICTS), tuple(rows), note)


def all_claims_table(sections: Sequence[Section]) -> Table:
    """Every claim that a result could contradict, with its verdict."""
    rows = [row for row in _claims(sections) if row[-1] != BY_CONSTRUCTION]
    columns = ("where", *sections[0].claims.columns)
    return Table("claims", "Claim by claim", columns, tuple(rows), HOW_JUDGED)


def constructed_table(sections: Sequence[Section]) -> Table:
    """The claims that no result could contradict, in a group of their own."""
    rows = [row[:-2] for row in _claims(sections) if row[-1] == BY_CONSTRUCTION]
    columns = ("where", *sections[0].claims.columns[:-2])
    name = BY_CONSTRUCTION.replace(" ", "-")
    return Table(name, BY_CONSTRUCTION.capitalize(), columns, tuple(rows), HOW_CONSTRUCTED)


def _claims(sections: Sequence[Section]) -> list[tuple[str, ...]]:
    return [(s.table.place, *row) for s in sections for row in s.claims.rows]


def coverage_table(sections: Sequence[Section]) -> Table:
    """What ran for each table of the paper, and what is missing."""
    rows = []
    for section in sections:
        rerun = section.rerun
        state = f"{section.done} of {section.stages} stages"
        if section.done < section.stages and rerun.lacks:
            state += f"; needs {' and '.join(rerun.lacks)}"
        rows.append(
            (
                section.table.title,
                section.table.place,
                section.table.name,
                rerun.file,
                rerun.study.real or "–",
                rerun.differs.removeprefix("Here: ") or "–",
                state,
            )
        )
    return Table(
        "coverage",
        "What ran for each table",
        ("in the paper", "where", "name", "experiment", "the paper's own", "here", "run"),
        tuple(rows),
        "Files are in `experiments`; those with the paper's own models and data run with `--hub`.",
    )


def time_table(studies: Mapping[str, Rerun]) -> Table:
    """How long each study took, from its records."""
    rows = []
    minutes_in_all = 0.0
    for name, rerun in studies.items():
        done = select(rerun.records, kind="stage")
        training = sum((r["training"] or {}).get("seconds", 0.0) for r in done) / 60
        stages = sum(seconds_of(record) for record in done) / 60
        timing = sum(r["seconds"] for r in select(rerun.records, kind="timing")) / 60
        minutes_in_all += stages + timing
        machine = done[-1]["machine"] if done else None
        rows.append(
            (
                name,
                str(len(done)),
                f"{training:.0f}",
                f"{stages:.0f}",
                f"{timing:.0f}" if timing else "–",
                rerun.study.paper_minutes,
                f"{machine['processor']}, {machine['cores']} cores" if machine else "–",
            )
        )
    rows.append(("all", "", "", f"{minutes_in_all:.0f} with timing", "", "", ""))
    return Table(
        "time",
        "How long it took",
        (
            "study",
            "stages",
            "minutes of training",
            "with measuring",
            "of timing",
            "minutes in the paper",
            "machine",
        ),
        tuple(rows),
        "Minutes of the processes that did it, two of them side by side, so that about half of it "
        "passed on the clock; timing ran alone. Records that are older than the count of measuring "
        "or of timing have training alone. The paper's minutes are of its own models and machine "
        "(Section 7).",
    )


def stage_table(studies: Mapping[str, Rerun]) -> Table:
    """The wall-clock of each kind of stage."""
    rows = []
    for name, rerun in studies.items():
        for method in methods_of(rerun.experiment):
            done = select(rerun.records, kind="stage", method=method)
            seconds = [seconds_of(record) for record in done]
            if any(seconds):
                rows.append((name, method, str(len(done)), mean_sd(seconds, 0)))
    return Table(
        "stages",
        "Stage by stage",
        ("study", "method", "stages", "seconds of one"),
        tuple(rows),
        "Wall-clock of the process, from the records; those of scores that took none are left out.",
    )


def list_table(plan: Plan, names: Sequence[str] = (), *, hub: bool = False) -> Table:
    """What each table needs, and how long it took where the plan's own records were made."""
    settings = Settings(hub=hub)
    reruns = plan_reruns(plan, settings, names=names, results=plan.folder / "results")
    rows = []
    for table in plan.choose(names):
        rerun = reruns[table.study]
        part = table.needs_of(rerun.experiment)
        needs = [*settings.lacks(rerun.study), *lacking_extras(part)]
        took = seconds_of_pieces(rerun.records)
        known = all(Piece(stage.key) in took for stage in part.stages)
        minutes = sum(took.get(piece, 0.0) for piece in pieces_of(part.stages)) / 60
        rows.append(
            (
                table.name,
                table.title,
                rerun.file,
                ", ".join(needs) or "–",
                str(len(part.stages)),
                f"{minutes:.0f}" if known else "–",
            )
        )
    return Table(
        "list",
        "The paper's tables",
        ("name", "table", "experiment", "needs", "stages", "minutes"),
        tuple(rows),
        "Minutes of one process where the records of this repository were made, warm starts "
        "included: tables of one study share them, and two processes side by side take half. With "
        "--quick no folder is needed, and all of it takes minutes.",
    )
