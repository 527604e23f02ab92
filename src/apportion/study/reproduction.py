"""The paper, reproduced: what has no records yet is run, and all of it is reported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from apportion.data.stand_ins import write_docstrings
from apportion.data.text import Text
from apportion.files import holding
from apportion.study.bars import Overview
from apportion.study.driver import local_driver as driver
from apportion.study.paper import read_plan
from apportion.study.planning import (
    QUICK,
    Rerun,
    Settings,
    check_settings,
    plan_reruns,
    work_of,
)
from apportion.study.report.paper_page import PaperReport, write_report
from apportion.study.report.paper_tables import sections_of
from apportion.study.report.table import Table

PLAN = Path("experiments") / "paper.toml"


@dataclass(frozen=True)
class Reproduction:
    """The paper's claims judged by what came out here, and where the report is."""

    page: Path
    markdown: Path  # the same as Markdown
    tables: tuple[Table, ...]  # of all of it together: verdicts, claims, coverage, time
    verdicts: Mapping[str, int]  # how many claims have each
    verdict_table: Table  # how many claims hold, table by table
    incomplete: Mapping[str, Sequence[str]]  # tables that lack records, by their study
    failed: Mapping[str, str]  # studies that stopped, and why


def reproduce(
    tables: str | Sequence[str] = (),
    plan: str | Path = PLAN,
    *,
    quick: bool = False,
    hub: bool = False,
    data: Mapping[str, str | Path] | None = None,
    models: Mapping[str, str | Path] | None = None,
    device: str = "cpu",
    out: str | Path | None = None,
    results: str | Path | None = None,
    runs: str | Path | None = None,
    jobs: int | None = None,
    report_only: bool = False,
    console: Console | None = None,
) -> Reproduction:
    """The paper's tables, run where they have no records yet, beside what the paper prints.

    All tables, or those of some names; `quick` reduces them to minutes, `hub` downloads the
    paper's own models and data. `data` and `models` are folders by their names in the plan; a
    study that lacks its folder is left out. Report, records and checkpoints go to `out`, or the
    last two to `results` and `runs`. `jobs` stages run side by side. Killed at any moment, the
    same call goes on where it was; a study that fails does not stop the others. A `console` is
    shown how far it is.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs}")
    paper = read_plan(Path(plan))
    out = Path(out) if out else _default_place(quick, hub, device)
    results, runs = Path(results or out / "results"), Path(runs or out / "stages")
    settings = Settings(quick, hub, device, data=_paths(data), models=_paths(models))
    settings = check_settings(paper, settings, names=tables, out=out)
    chosen = paper.choose(tables)
    reruns = plan_reruns(paper, settings, names=tables, results=results)
    failed: dict[str, str] = {}
    if not report_only:
        watcher = Overview(console or Console(quiet=True, force_terminal=False))
        if quick:
            watcher.warned(QUICK)
        jobs = jobs or min(2, os.cpu_count() or 1)
        written = [p for name in reruns for p in (runs / name, results / f"{name}.jsonl")]
        with holding(out, *written):
            for name, folder in settings.stand_ins.items():
                if not (folder / "test.csv").exists():
                    write_docstrings(folder, paper.texts[name].stand_in)
            todo = _left_to_do(reruns.values(), watcher)
            can_run = [rerun for rerun in reruns.values() if not rerun.lacks]
            watcher.planned(work_of(paper, can_run, tables=chosen, jobs=jobs))
            with watcher:
                failed = _run(todo, runs=runs, results=results, jobs=jobs, watcher=watcher)
        reruns = {name: rerun.with_records(results) for name, rerun in reruns.items()}
    sections = sections_of(chosen, reruns, quick=quick)
    report = write_report(PaperReport(paper, sections, out, quick, failed))
    return Reproduction(
        page=report.page,
        markdown=report.markdown,
        tables=tuple(report.tables),
        verdicts=report.verdicts,
        verdict_table=report.verdict_table,
        incomplete=report.incomplete,
        failed=failed,
    )


def _paths(folders: Mapping[str, str | Path] | None) -> dict[str, Path]:
    return {name: Path(folder) for name, folder in (folders or {}).items()}


def _default_place(quick: bool, hub: bool, device: str) -> Path:
    """Where a run of this kind goes: what was measured in another way lies elsewhere."""
    ways = ["quick"] * quick + ["hub"] * hub + [device.replace(":", "-")] * (device != "cpu")
    return Path("runs") / "-".join(["reproduce", *ways])


def _left_to_do(reruns: Iterable[Rerun], watcher: Overview) -> list[Rerun]:
    """The studies that are not complete and can be run; bad data is found now, not in a day."""
    todo = []
    for rerun in reruns:
        if not any(driver.unfinished(rerun.experiment, rerun.records)):
            continue
        if rerun.lacks:
            watcher.warned(f"{rerun.study.name} is left out; it needs {' and '.join(rerun.lacks)}")
        else:
            todo.append(rerun)
    for rerun in todo:
        if isinstance(rerun.experiment.task, Text):
            rerun.experiment.stages[0].build_task()
    return todo


def _run(
    todo: Iterable[Rerun], *, runs: Path, results: Path, jobs: int, watcher: Overview
) -> dict[str, str]:
    """Runs study by study; the names of those that failed, and why."""
    failed = {}
    for rerun in todo:
        name = rerun.study.name
        try:
            file = results / f"{name}.jsonl"
            driver.run(rerun.experiment, runs / name, results=file, watcher=watcher, jobs=jobs)
        except (OSError, ValueError) as error:  # the other studies can still run
            failed[name] = str(error)
            watcher.warned(f"{name} failed: {error}")
    return failed
