"""The report: one HTML page that needs nothing beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from apportion.files import write_text
from apportion.study.experiment import Experiment
from apportion.study.report.figures import study_figures
from apportion.study.report.paired import NONE_KEPT, Kept
from apportion.study.report.query import Records, select
from apportion.study.report.study_tables import study_tables
from apportion.study.report.word_view import word_views


def write_page(
    experiment: Experiment, records: Records, path: Path, *, answers: Kept = NONE_KEPT
) -> None:
    """Writes the report of an experiment."""
    if not select(records, kind="point"):
        raise ValueError(f"there are no records of {experiment.name!r} to report; run it first")
    html = render(
        "study.html",
        experiment=experiment,
        tables=study_tables(experiment, records, answers=answers),
        pictures=[(p, Markup(p.svg())) for p in study_figures(experiment, records)],
        words=word_views(records),
        last=select(records, kind="stage")[-1],
    )
    write_text(path, html)


def render(template: str, **values: Any) -> str:
    """A page from one of the templates beside this file."""
    environment = Environment(
        loader=PackageLoader("apportion.study.report", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(template).render(**values)
