"""Records → the reproduction: each table of the paper beside what ran here, with verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from apportion import records as record_files
from apportion.experiment import Experiment
from apportion.report.claims import FAILS, HOLDS, HOW_JUDGED, UNTESTED, claim_table, count_verdicts
from apportion.report.figures import Picture, study_figures
from apportion.report.page import render
from apportion.report.study import study_tables
from apportion.report.tables import Records, Table, mean_sd, methods_of, select
from apportion.reproduction import QUICK, PaperTable, Plan, Study, part_of
from apportion.stages import Stage, is_done


@dataclass(frozen=True)
class Ran:
    """A study as it was run: its experiment and the records that are there."""

    study: Study
    experiment: Experiment
    records: Records
    lacks: tuple[str, ...] = ()  # options without which the rest of it can't be run


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
    def differs(self) -> str:
        """What ran in place of what the paper has."""
        if not self.ran.study.stands_for:
            return ""
        return f"Stands in here: {self.ran.study.stands_for}"


def sections_of(plan: Plan, chosen: Sequence[PaperTable], ran: Mapping[str, Ran]) -> list[Section]:
    """What the chosen tables show, from the records that are there."""
    shown: dict[str, tuple[dict[str, Table], dict[str, Picture]]] = {}
    sections = []
    for table in chosen:
        of = ran[table.study]
        if table.study not in shown:
            has_points = bool(select(of.records, kind="point"))
            tables = study_tables(of.experiment, of.records) if has_points else []
            pictures = study_figures(of.experiment, of.records) if has_points else []
            shown[table.study] = ({t.name: t for t in tables}, {p.name: p for p in pictures})
        by_name, pictures_by_name = shown[table.study]
        stages = stages_of(table, of.experiment)
        sections.append(
            Section(
                table,
                of,
                claim_table(table, of.experiment, of.records),
                tuple(by_name[name] for name in table.shows if name in by_name),
                tuple(pictures_by_name[n] for n in table.figures if n in pictures_by_name),
                sum(is_done(stage, of.records) for stage in stages),
                len(stages),
            )
        )
    return sections


def stages_of(table: PaperTable, experiment: Experiment) -> tuple[Stage, ...]:
    """The stages that a table needs, warm starts included."""
    return part_of(experiment, table.methods_in(experiment)).stages


def reproduction_tables(plan: Plan, sections: Sequence[Section]) -> list[Table]:
    """What is said of all sections together: verdicts, coverage, and how long it took."""
    studies = {section.table.study: section.ran for section in sections}
    return [
        verdict_table(sections),
        all_claims_table(sections),
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
            rows.append((section.table.title, *(str(counts[v]) for v in (HOLDS, FAILS, UNTESTED))))
    total = count_verdicts([section.claims for section in sections])
    rows.append(("all", *(str(total[v]) for v in (HOLDS, FAILS, UNTESTED))))
    return Table(
        "verdicts", "The paper's claims", ("table", HOLDS, FAILS, UNTESTED), tuple(rows), HOW_JUDGED
    )


def all_claims_table(sections: Sequence[Section]) -> Table:
    """Every claim with its verdict."""
    columns = sections[0].claims.columns
    rows = [(s.table.place, *row) for s in sections for row in s.claims.rows]
    return Table("claims", "Claim by claim", ("where", *columns), tuple(rows), HOW_JUDGED)


def coverage_table(sections: Sequence[Section]) -> Table:
    """What ran for each table of the paper, and what is missing."""
    rows = []
    for section in sections:
        study = section.ran.study
        state = f"{section.done} of {section.stages} stages"
        if section.done < section.stages and section.ran.lacks:
            state += f"; needs {' '.join(section.ran.lacks)}"
        rows.append(
            (
                section.table.title,
                section.table.place,
                f"`{section.table.name}`",
                f"`{study.file}`",
                f"`{study.real}`" if study.real else "–",
                study.stands_for or "–",
                state,
            )
        )
    return Table(
        "coverage",
        "What ran for each table",
        ("in the paper", "where", "name", "experiment", "the paper's own", "stands in", "run"),
        tuple(rows),
        "Experiment files are in `experiments`; those with the paper's own models and data run "
        "with `--hub` and were not run here.",
    )


def time_table(studies: Mapping[str, Ran]) -> Table:
    """How long each study took, from its records."""
    rows = []
    minutes_in_all = 0.0
    for name, ran in studies.items():
        done = select(ran.records, kind="stage")
        minutes = sum(seconds_of(record) for record in done) / 60
        training = sum((r["training"] or {}).get("seconds", 0.0) for r in done) / 60
        minutes_in_all += minutes
        machine = done[-1]["machine"] if done else None
        rows.append(
            (
                name,
                str(len(done)),
                f"{training:.0f}",
                f"{minutes:.0f}",
                f"{machine['processor']}, {machine['cores']} cores" if machine else "–",
            )
        )
    rows.append(("all", "", "", f"{minutes_in_all:.0f}", ""))
    return Table(
        "time",
        "How long it took",
        ("study", "stages", "minutes of training", "minutes with measuring", "machine"),
        tuple(rows),
        "Minutes of the processes that did it, one thread each, mostly two side by side, so that "
        "about half of it passed on the clock; timing comes on top. Records older than the count "
        "of measuring have training alone.",
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


def seconds_of(record: Mapping[str, Any]) -> float:
    """The wall-clock of a stage, or of its training where its record has no more."""
    return float(record.get("seconds") or (record["training"] or {}).get("seconds", 0.0))


def write_report(
    plan: Plan, sections: Sequence[Section], folder: Path, quick: bool, pictures_in: str = "figures"
) -> tuple[Path, Path]:
    """Writes page, Markdown, and figures as SVG and PNG; returns the paths of the first two."""
    if not any(section.done for section in sections):
        raise ValueError("none of these tables has records yet; there is nothing to report")
    drawn = {}
    for section in sections:
        for picture in section.pictures:
            drawn[figure_file(section, picture)] = picture
    for name, picture in drawn.items():
        record_files.write_text(folder / pictures_in / f"{name}.svg", picture.svg())
        record_files.write_bytes(folder / pictures_in / f"{name}.png", picture.png())
    page, text = folder / "report.html", folder / "report.md"
    last = [r for s in sections for r in select(s.ran.records, kind="stage")][-1]
    html = render(
        "reproduction.html",
        plan=plan,
        quick=QUICK if quick else "",
        tables=reproduction_tables(plan, sections),
        sections=[(s, [(p, Markup(p.svg())) for p in s.pictures]) for s in sections],
        last=last,
    )
    record_files.write_text(page, html)
    record_files.write_text(text, markdown(plan, sections, quick, pictures_in))
    return page, text


def markdown(
    plan: Plan, sections: Sequence[Section], quick: bool, pictures_in: str = "figures"
) -> str:
    """The report as Markdown; figures are beside it."""
    verdicts = verdict_table(sections)
    parts = [f"# {plan.title}, table by table", f"The paper is {plan.source}. {_INTRODUCTION}"]
    if quick:
        parts.append(f"**{QUICK}**")
    parts += [f"## {verdicts.title}", verdicts.markdown()]
    for section in sections:
        heading = f"## {section.table.title}{' (quick)' * quick}"
        where = f"In the paper: {section.table.place}. Experiment: `{section.ran.study.file}`."
        parts += [heading, f"{where} {section.differs}".strip()]
        if section.claims.rows:
            parts.append(section.claims.markdown())
        for table in section.tables:
            parts += [f"### {table.title}", table.markdown()]
        for picture in section.pictures:
            file = f"{pictures_in}/{figure_file(section, picture)}.svg"
            parts.append(f"![{picture.title}]({file})\n\n{picture.caption}")
        if section.done < section.stages:
            parts.append(f"{section.done} of {section.stages} stages have records.")
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = (
    "Every number comes from records that a command produced: mean ± sample standard deviation "
    "over n seeds."
)


def figure_file(section: Section, picture: Picture) -> str:
    """The name of a figure's file, without its ending."""
    return f"{section.ran.experiment.name}-{picture.name}"
