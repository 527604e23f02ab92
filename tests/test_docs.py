"""What the docs say is what the records and the code say."""

from __future__ import annotations

import re
import shlex
import statistics
from pathlib import Path

import pytest
from code_links import linked
from typer.main import get_command

import apportion.study.serving_records  # noqa: F401 - makes its kinds known
from apportion.cli import app
from apportion.cli.running import results_of
from apportion.study import records
from apportion.study.answers import read_answers
from apportion.study.comparison import is_comparison, read_comparison
from apportion.study.driver.local_driver import unfinished
from apportion.study.experiment import current, read_experiment
from apportion.study.paper import read_plan
from apportion.study.planning import Settings, plan_reruns
from apportion.study.report.markdown import fill
from apportion.study.report.paper_page import PaperReport, markdown
from apportion.study.report.paper_tables import sections_of
from apportion.study.report.peer_tables import comparison_tables
from apportion.study.report.serving_tables import STUDY, serving_tables
from apportion.study.report.study_tables import study_tables

HOME = Path(__file__).parent.parent
PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
README = (HOME / "README.md").read_text(encoding="utf-8")
PLAN = HOME / "experiments" / "paper.toml"
EVERY = sorted(set((HOME / "experiments").glob("*.toml")) - {PLAN})
COMPARISONS = [file for file in EVERY if is_comparison(file)]  # whose tables may still be empty
FILES = [file for file in EVERY if file not in COMPARISONS]
STUDIES = [file for file in FILES if results_of(file).exists()]  # those that were run


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_table_is_the_one_that_the_records_give(file):
    plan = read_experiment(file)
    have = current(plan, records.read(results_of(file)))
    tables = study_tables(plan, have, answers=read_answers(plan.stages, results_of(file)))
    pages = {page: page.read_text(encoding="utf-8") for page in PAGES}
    marked = [page for page, text in pages.items() if f"<!-- table: {plan.name}/" in text]
    assert marked, "no page shows this study"
    for page in marked:
        assert fill(pages[page], plan.name, tables) == pages[page], "run `make docs`"


@pytest.mark.parametrize("file", COMPARISONS, ids=lambda file: file.stem)
def test_every_table_of_a_comparison_is_the_one_that_the_records_give(file):
    plan = read_comparison(file)
    tables = comparison_tables(plan, records.read(results_of(file)))
    pages = {page: page.read_text(encoding="utf-8") for page in PAGES}
    marked = [page for page, text in pages.items() if f"<!-- table: {plan.name}/" in text]
    assert marked, "no page shows this comparison"
    for page in marked:
        assert fill(pages[page], plan.name, tables) == pages[page], "run `make docs`"


def test_every_table_of_the_server_is_the_one_that_the_records_give():
    page = HOME / "docs" / "serve.md"
    found = records.read(HOME / "experiments" / "load" / "serving.jsonl")
    for line in found:
        records.record_of(line)
    text = page.read_text(encoding="utf-8")
    filled = fill(text, STUDY, serving_tables(found))
    assert filled == text, "apportion report experiments/load/serving.jsonl --fill docs/serve.md"


def test_every_marked_table_is_of_a_study_that_exists():
    compared = {read_comparison(file).name for file in COMPARISONS}
    known = {"paper", "serving", *compared, *(read_experiment(file).name for file in STUDIES)}
    for page in PAGES:
        named = re.findall(r"<!-- table: ([\w-]+)/", page.read_text(encoding="utf-8"))
        assert set(named) <= known


@pytest.mark.slow
def test_the_reproduction_is_the_one_that_the_records_give():
    plan = read_plan(PLAN)
    reruns = plan_reruns(plan, Settings(), results=plan.folder / "results")
    sections = sections_of(plan.tables, reruns)
    made = PaperReport(plan, sections, out=HOME)
    report = (HOME / "docs" / "paper-tables.md").read_text(encoding="utf-8")
    assert markdown(made) == report, "run `make docs`"
    for page in (HOME / "README.md", HOME / "docs" / "reproduce.md"):
        text = page.read_text(encoding="utf-8")
        assert fill(text, "paper", made.tables) == text, "run `make docs`"


# Studies of which some seeds are run, and what those have; their page says so.
UNDER_WAY = {
    "nested-ag-news.toml": (1, {"dense", "converted", "nested"}),
    "nested-dbpedia14.toml": (1, {"dense", "converted", "nested"}),
}


def test_every_study_has_all_its_records():
    plan = read_plan(PLAN)
    assert {study.file for study in plan.studies} <= {file.name for file in STUDIES}
    for file in STUDIES:
        experiment = read_experiment(file)
        results = results_of(file)
        todo, timed = unfinished(experiment, records.read(results), results=results)
        if file.name in UNDER_WAY:
            seeds, methods = UNDER_WAY[file.name]
            first = experiment.of_seeds(seeds).stages
            todo = [stage for stage in todo if stage in first and stage.method in methods]
        assert (todo, timed) == ([], []), file.name


def test_links_to_the_code_lead_to_what_they_name():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert linked(text) == text, "run `make docs`"


@pytest.fixture(scope="module")
def example():
    """The names that the README's blocks of Python leave, run in their order on few rows."""
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, object] = {}
    for code in blocks:
        small = re.sub(r"epochs=\d+", "epochs=1", code)
        small = small.replace("train=4096", "train=64, validation=32, test=32")
        exec(small.replace("print(", "str("), names)
    return names


def test_the_readmes_example_runs(example):
    assert example["logits"].shape == (32, 2)


def test_what_the_readme_says_in_a_line_of_python_runs_too(example, capsys):
    """After its blocks, with the example's arguments where three dots stand."""
    lines = re.findall(r"`(with [^`]+)`", README)
    assert lines
    for line in lines:
        exec(
            line.replace("…", 'model, task, recipe=recipe("dense", epochs=1), seed=7'),
            dict(example),
        )


def test_the_readmes_commands_take_the_options_that_it_gives_them():
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    commands = get_command(app).commands
    lines = [line for block in blocks for line in block.splitlines()]
    given = [shlex.split(line, comments=True) for line in lines if line.startswith("apportion ")]
    assert len(given) > 10
    for _, name, *words in given:
        commands[name].make_context(name, words)  # parses them, and runs nothing


def lost_points(kind, method, budget, digits):
    """What a budget costs on AG News and DBpedia14, on average over the seeds that were run."""
    costs = []
    for data in ("ag-news", "dbpedia14"):
        file = HOME / "experiments" / f"{kind}-{data}.toml"
        have = current(read_experiment(file), records.read(results_of(file)))
        points = [r for r in have if r["kind"] == "point"]
        dense = {r["seed"]: r["accuracy"] for r in points if r["method"] == "dense"}
        asked = [r for r in points if (r["method"], r["budget"]) == (method, budget)]
        lost = [100 * (dense[r["seed"]] - r["accuracy"]) for r in asked]
        assert len(lost) == {"elastic": 3, "nested": 1}[kind]
        costs.append(f"{statistics.mean(lost):.{digits}f}")
    return costs


def test_what_budgets_cost_is_what_the_records_say():
    trained = lost_points("nested", "nested", 0.25, 2)
    says = "a quarter of the budget costs {} points on AG News and {} on DBpedia14"
    assert says.format(*trained) in README
    now, before = (
        lost_points("nested", "converted", 0.5, 2),
        lost_points("elastic", "repaired-2", 0.5, 1),
    )
    says = "half of it costs {} and {}, where the earlier conversion cost {} and {}"
    assert says.format(*now, *before) in README


def test_the_readmes_commands_exist():
    text = (HOME / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^apportion (\w+)", text, flags=re.MULTILINE))
    assert named == set(get_command(app).commands)


def test_the_makefile_explains_every_target_and_has_those_of_the_docs():
    makefile = (HOME / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE)) - {"help"}
    explained = re.findall(r'@echo "make ([\w-]+) ', makefile)
    assert sorted(explained) == sorted(targets)
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    assert set(phony.split()) == targets | {"help"}
    for page in PAGES:
        named = re.findall(r"`make ([\w-]+)", page.read_text(encoding="utf-8"))
        named += re.findall(r"^make ([\w-]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(named) <= targets, page.name


def test_every_link_in_the_docs_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} → {target}"
