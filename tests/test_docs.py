"""What the docs say is what the records and the code say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from code_links import linked
from typer.main import get_command

from apportion import records
from apportion.cli import app
from apportion.cli.experiments import results_of
from apportion.driver import unfinished
from apportion.experiment import current, read_experiment
from apportion.report.markdown import fill
from apportion.report.reproduction import Ran, markdown, reproduction_tables, sections_of
from apportion.report.study import study_tables
from apportion.reproduction import Settings, read_plan, study_experiment

HOME = Path(__file__).parent.parent
PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
PLAN = HOME / "experiments" / "paper.toml"
FILES = sorted(set((HOME / "experiments").glob("*.toml")) - {PLAN})
STUDIES = [file for file in FILES if results_of(file).exists()]  # those that were run


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_table_is_the_one_that_the_records_give(file):
    plan = read_experiment(file)
    tables = study_tables(plan, current(plan, records.read(results_of(file))))
    pages = {page: page.read_text(encoding="utf-8") for page in PAGES}
    marked = [page for page, text in pages.items() if f"<!-- table: {plan.name}/" in text]
    assert marked, "no page shows this study"
    for page in marked:
        assert fill(pages[page], plan.name, tables) == pages[page], "run `make docs`"


def test_every_marked_table_is_of_a_study_that_exists():
    for page in PAGES:
        named = re.findall(r"<!-- table: ([\w-]+)/", page.read_text(encoding="utf-8"))
        assert set(named) <= {"paper", *(read_experiment(file).name for file in STUDIES)}


def test_the_reproduction_is_the_one_that_the_records_give():
    plan = read_plan(PLAN)
    ran = {}
    for study in plan.studies:
        experiment = study_experiment(plan, study, Settings())
        have = current(experiment, records.read(results_of(plan.folder / study.file)))
        lacks, differs = tuple(Settings().lacks(study)), Settings().differs(plan, study)
        ran[study.name] = Ran(study, study.file, experiment, have, differs, lacks)
    sections = sections_of(plan.tables, ran)
    report = (HOME / "docs" / "paper-tables.md").read_text(encoding="utf-8")
    assert markdown(plan, sections, quick=False) == report, "run `make docs`"
    tables = reproduction_tables(sections)
    for page in (HOME / "README.md", HOME / "docs" / "reproduce.md"):
        text = page.read_text(encoding="utf-8")
        assert fill(text, "paper", tables) == text, "run `make docs`"


def test_every_study_has_all_its_records():
    plan = read_plan(PLAN)
    assert {study.file for study in plan.studies} <= {file.name for file in STUDIES}
    for file in STUDIES:
        experiment = read_experiment(file)
        assert unfinished(experiment, records.read(results_of(file))) == ([], []), file.name


def test_links_to_the_code_lead_to_what_they_name():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert linked(text) == text, "run `make docs`"


def test_the_readmes_example_runs():
    text = (HOME / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    small = re.sub(r"epochs=\d+", "epochs=1", code)
    small = small.replace("train=4096", "train=64, validation=32, test=32").replace(
        "print(", "str("
    )
    names: dict[str, object] = {}
    exec(small, names)
    assert names["logits"].shape == (32, 2)


def test_the_readmes_commands_exist():
    text = (HOME / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^apportion (\w+)", text, flags=re.MULTILINE))
    assert named == set(get_command(app).commands)


def test_the_makefile_has_both_commands_of_the_readme():
    makefile = (HOME / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test", "quick", "check", "study", "docs"):
        assert re.search(rf"^{target}: ", makefile, flags=re.MULTILINE)


def test_every_link_in_the_docs_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} → {target}"
