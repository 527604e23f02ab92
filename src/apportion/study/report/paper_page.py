"""The report of the reproduction: one page, the same in Markdown, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from apportion.files import write_bytes, write_text
from apportion.study.paper import Plan
from apportion.study.planning import QUICK
from apportion.study.report.claim_tables import count_verdicts
from apportion.study.report.drawing import Picture
from apportion.study.report.page import render
from apportion.study.report.paper_tables import Section, reproduction_tables
from apportion.study.report.query import select
from apportion.study.report.table import Table

_FIGURES = "figures"


@dataclass(frozen=True)
class PaperReport:
    """The paper's tables beside what came out here, with verdicts, and where the report is."""

    plan: Plan
    sections: Sequence[Section]  # one per table of the paper
    out: Path
    quick: bool = False  # reduced to minutes: no evidence
    failed: Mapping[str, str] = field(default_factory=dict)  # studies that stopped, and why

    @property
    def page(self) -> Path:
        """The report."""
        return self.out / "report.html"

    @property
    def markdown(self) -> Path:
        """The same as Markdown."""
        return self.out / "report.md"

    @cached_property
    def tables(self) -> list[Table]:
        """What is said of all sections together: verdicts, claims, coverage, time."""
        return reproduction_tables(self.sections)

    @property
    def verdicts(self) -> dict[str, int]:
        """How many claims have each verdict."""
        return count_verdicts([section.claims for section in self.sections])

    @property
    def verdict_table(self) -> Table:
        """How many claims hold, table by table; marked if that is no evidence."""
        table = self.tables[0]
        if self.quick:
            table = replace(table, name=f"quick {table.name}", title=f"{table.title} (quick)")
        return table

    @property
    def incomplete(self) -> dict[str, list[str]]:
        """The names of the tables whose records are not all there, by their study."""
        names: dict[str, list[str]] = {}
        for section in self.sections:
            if section.done < section.stages:
                names.setdefault(section.table.study, []).append(section.table.name)
        return names


def write_report(made: PaperReport) -> PaperReport:
    """Writes page, Markdown, and figures as SVG and PNG."""
    if not any(section.done for section in made.sections):
        raise ValueError("none of these tables has records yet; there is nothing to report")
    drawings = {}
    for section in made.sections:
        for picture in section.pictures:
            name = figure_file(section, picture)
            if name not in drawings:
                drawings[name] = picture.svg()
                write_text(made.out / _FIGURES / f"{name}.svg", drawings[name])
                write_bytes(made.out / _FIGURES / f"{name}.png", picture.png())
    html = render(
        "reproduction.html",
        plan=made.plan,
        quick=QUICK if made.quick else "",
        tables=made.tables,
        sections=[
            (s, [(p, Markup(drawings[figure_file(s, p)])) for p in s.pictures])
            for s in made.sections
        ],
        last=_newest(made.sections),
    )
    write_text(made.page, html)
    write_text(made.markdown, markdown(made))
    return made


def markdown(made: PaperReport) -> str:
    """The report as Markdown; figures are beside it."""
    plan, sections, quick = made.plan, made.sections, made.quick
    first, _, _, *rest = made.tables
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


def figure_file(section: Section, picture: Picture) -> str:
    """The name of a figure's file, without its ending."""
    return f"{section.rerun.experiment.name}-{picture.name}"


def _newest(sections: Sequence[Section]) -> Mapping[str, Any]:
    """The record of the stage that ended last."""
    done = [r for section in sections for r in select(section.rerun.records, kind="stage")]
    return max(done, key=lambda record: record["time"])
