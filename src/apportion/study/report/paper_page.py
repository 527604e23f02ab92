"""The report of the reproduction: one page, the same in Markdown, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from apportion.files import write_bytes, write_text
from apportion.study.paper import Plan
from apportion.study.planning import QUICK
from apportion.study.report.drawing import Picture
from apportion.study.report.page import render
from apportion.study.report.paper_tables import Section
from apportion.study.report.tables import Table, select

_FIGURES = "figures"


def write_report(
    plan: Plan,
    sections: Sequence[Section],
    *,
    tables: Sequence[Table],
    folder: Path,
    quick: bool = False,
) -> tuple[Path, Path]:
    """Writes page, Markdown, and figures as SVG and PNG; returns the paths of the first two.

    `tables` are those of `reproduction_tables`.
    """
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
        tables=tables,
        sections=[
            (s, [(p, Markup(drawings[figure_file(s, p)])) for p in s.pictures]) for s in sections
        ],
        last=_newest(sections),
    )
    write_text(page, html)
    write_text(text, markdown(plan, sections, tables=tables, quick=quick))
    return page, text


def markdown(
    plan: Plan, sections: Sequence[Section], *, tables: Sequence[Table], quick: bool = False
) -> str:
    """The report as Markdown; figures are beside it."""
    first, _, _, *rest = tables
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
