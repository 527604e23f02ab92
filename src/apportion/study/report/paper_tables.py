"""Records → the reproduction: each table of the paper beside what ran here, with verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from apportion.files import write_bytes, write_text
from apportion.study import records as record_files
from apportion.study.experiment import Experiment
from apportion.study.paper import QUICK, PaperTable, Plan, Study, part_of, timing_of
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
from apportion.study.report.page import render
from apportion.study.report.query import Records, mean_sd, methods_of, select
from apportion.study.report.study_tables import study_tables
from apportion.study.report.table import Table
from apportion.study.stages import Stage, is_done


@dataclass(frozen=True)
class Ran:
    """A study as it was run: its experiment and the records that are there."""

    study: Study
    file: str
    experiment: Experiment
    records: Records
    differs: str = ""  # what ran in place of what the paper has
    lacks: tuple[str, ...] = ()  # what the rest of it can't be run without


@dataclass(frozen=True)
class Section:
    """A table of the paper, and everything that stands beside it."""

    table: PaperTable
    ran: Ran
    claims: Table
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    done: int
    stages: int

    @property
    def where(self) -> str:
        """Where it stands in the paper, what was run for it, and what is missing."""
        text = f"In the paper: {self.table.place}. Experiment: {self.ran.file}; "
        text += f"{self.done} of {self.stages} stages have records."
        if self.done < self.stages and self.ran.lacks:
            text += f" The rest needs {' and '.join(self.ran.lacks)}."
        return f"{text} {self.ran.differs}".strip()


def sections_of(
    chosen: Sequence[PaperTable], ran: Mapping[str, Ran], quick: bool = False
) -> list[Section]:
    """What the chosen tables show, from the records that are there."""
    shown: dict[str, tuple[dict[str, Table], dict[str, Picture]]] = {}
    sections = []
    for table in chosen:
        of = ran[table.study]
        if table.study not in shown:
            has_points = bool(select(of.records, kind="point"))
            tables = study_tables(of.experiment, of.records) if has_points else []
            pictures = study_figures(of.experiment, of.records) if has_points else []
            if quick:
                pictures = [picture.marked("quick run, no evidence") for picture in pictures]
            shown[table.study] = ({t.name: t for t in tables}, {p.name: p for p in pictures})
        by_name, pictures_by_name = shown[table.study]
        stages = stages_of(table, of.experiment)
        sections.append(
            Section(
                table,
                of,
                claim_table(table, of.experiment, of.records),
                (*_printed(table), *(by_name[name] for name in table.shows if name in by_name)),
                tuple(pictures_by_name[n] for n in table.figures if n in pictures_by_name),
                sum(is_done(stage, of.records) for stage in stages),
                len(stages),
            )
        )
    return sections


def _printed(table: PaperTable) -> list[Table]:
    """What the paper prints where ours is no table with columns for both."""
    if not table.printed:
        return []
    columns, *rows = table.printed
    return [Table("printed", "As the paper prints it", columns, tuple(rows))]


def stages_of(table: PaperTable, experiment: Experiment) -> tuple[Stage, ...]:
    """The stages that a table needs, warm starts included."""
    return part_of(experiment, table.methods_in(experiment)).stages


def reproduction_tables(sections: Sequence[Section]) -> list[Table]:
    """What is said of all sections together: verdicts, coverage, and how long it took."""
    studies = {section.table.study: section.ran for section in sections}
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
        ran = section.ran
        state = f"{section.done} of {section.stages} stages"
        if section.done < section.stages and ran.lacks:
            state += f"; needs {' and '.join(ran.lacks)}"
        rows.append(
            (
                section.table.title,
                section.table.place,
                section.table.name,
                ran.file,
                ran.study.real or "–",
                ran.differs.removeprefix("Here: ") or "–",
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


def time_table(studies: Mapping[str, Ran]) -> Table:
    """How long each study took, from its records."""
    rows = []
    minutes_in_all = 0.0
    for name, ran in studies.items():
        done = select(ran.records, kind="stage")
        training = sum((r["training"] or {}).get("seconds", 0.0) for r in done) / 60
        stages = sum(seconds_of(record) for record in done) / 60
        timing = sum(r["seconds"] for r in select(ran.records, kind="timing")) / 60
        minutes_in_all += stages + timing
        machine = done[-1]["machine"] if done else None
        rows.append(
            (
                name,
                str(len(done)),
                f"{training:.0f}",
                f"{stages:.0f}",
                f"{timing:.0f}" if timing else "–",
                ran.study.paper_minutes,
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


def stage_table(studies: Mapping[str, Ran]) -> Table:
    """The wall-clock of each kind of stage."""
    rows = []
    for name, ran in studies.items():
        for method in methods_of(ran.experiment):
            done = select(ran.records, kind="stage", method=method)
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


def expected_seconds(plan: Plan, ran: Sequence[Ran]) -> dict[str, float]:
    """Seconds of each piece of work, where the plan's own records have the very same."""
    expected = {}
    for of in ran:
        have = record_files.read(plan.folder / "results" / f"{of.study.name}.jsonl")
        for stage in of.experiment.stages:
            for record in select(have, kind="stage", stage=stage.key):
                expected[stage.key] = seconds_of(record)
            for record in select(have, kind="timing", stage=stage.key):
                expected[timing_of(stage.key)] = record["seconds"]
    return expected


def seconds_of(record: Mapping[str, Any]) -> float:
    """The wall-clock of a stage, or of its training where its record has no more."""
    return float(record.get("seconds") or (record["training"] or {}).get("seconds", 0.0))


def write_report(
    plan: Plan, sections: Sequence[Section], folder: Path, quick: bool
) -> tuple[Path, Path]:
    """Writes page, Markdown, and figures as SVG and PNG; returns the paths of the first two."""
    if not any(section.done for section in sections):
        raise ValueError("none of these tables has records yet; there is nothing to report")
    drawings = {}
    for section in sections:
        for picture in section.pictures:
            name = figure_file(section, picture)
            if name not in drawings:
                drawings[name] = picture.svg()
                write_text(folder / _FIGURES / f"{name}.svg", drawings[name])
                write_bytes(folder / _FIGURES / f"{name}.png", picture.png())
    page, text = folder / "report.html", folder / "report.md"
    html = render(
        "reproduction.html",
        plan=plan,
        quick=QUICK if quick else "",
        tables=reproduction_tables(sections),
        sections=[
            (s, [(p, Markup(drawings[figure_file(s, p)])) for p in s.pictures]) for s in sections
        ],
        last=_newest(sections),
    )
    write_text(page, html)
    write_text(text, markdown(plan, sections, quick))
    return page, text


def markdown(plan: Plan, sections: Sequence[Section], quick: bool) -> str:
    """The report as Markdown; figures are beside it."""
    first, _, _, *rest = reproduction_tables(sections)
    mark = " (quick)" * quick
    last = _newest(sections)
    parts = [
        f"# {plan.title}, table by table",
        f"The paper is {plan.source}; its numbers come from {plan.machine}. Ours come from records "
        "that a command produced: mean ± sample standard deviation over n seeds.",
        *([f"**{QUICK}**"] if quick else []),
        f"## {first.title}{mark}",
        first.markdown(),
    ]
    for section in sections:
        parts += [f"## {section.table.title}{mark}", section.where]
        if section.claims.rows:
            parts.append(section.claims.markdown())
        for table in section.tables:
            parts += [f"### {table.title}", table.markdown()]
        for picture in section.pictures:
            file = f"{_FIGURES}/{figure_file(section, picture)}.svg"
            parts.append(f"![{picture.title}]({file})\n\n{picture.caption}")
    for table in rest:
        parts += [f"## {table.title}{mark}", table.markdown()]
    parts.append(
        f"Measured with apportion {last['versions']['apportion']}, torch "
        f"{last['versions']['torch']}, Python {last['python']} on {last['machine']['processor']} "
        f"({last['machine']['cores']} cores)."
    )
    return "\n\n".join(parts) + "\n"


_FIGURES = "figures"


def figure_file(section: Section, picture: Picture) -> str:
    """The name of a figure's file, without its ending."""
    return f"{section.ran.experiment.name}-{picture.name}"


def _newest(sections: Sequence[Section]) -> Mapping[str, Any]:
    """The record of the stage that ended last."""
    done = [r for section in sections for r in select(section.ran.records, kind="stage")]
    return max(done, key=lambda record: record["time"])
