"""What the docs say is what the records and the code say."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from pathlib import Path

import front_page
import pytest
from asgi import call
from code_links import linked
from commands import run
from pretrained import write_classifier, write_pretrained
from texts import CLUES, folder, rows, write
from typer.main import get_command
from virtual import TIERS, logits, model

import apportion.study.certificate_records
import apportion.study.ray_records
import apportion.study.serving_records  # noqa: F401 - all three make their kinds known
from apportion.cli import app
from apportion.cli.running import results_of
from apportion.serving.server.app import build_app
from apportion.serving.server.engine import ServingEngine
from apportion.serving.server.terms import Config
from apportion.study import records
from apportion.study.answers import read_answers
from apportion.study.comparison import is_comparison, read_comparison
from apportion.study.driver.local_driver import unfinished
from apportion.study.experiment import current, read_experiment, read_toml
from apportion.study.paper import read_plan
from apportion.study.planning import Settings, plan_reruns
from apportion.study.report.markdown import fill
from apportion.study.report.paper_page import PaperReport, markdown
from apportion.study.report.paper_tables import sections_of
from apportion.study.report.peer_tables import comparison_tables
from apportion.study.report.promise_tables import promise_tables
from apportion.study.report.serving_tables import STUDY, serving_tables
from apportion.study.report.study_tables import study_tables

HOME = Path(__file__).parent.parent
PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
README = (HOME / "README.md").read_text(encoding="utf-8")
TOUR = (HOME / "docs" / "tour.md").read_text(encoding="utf-8")
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


# Records that belong to no experiment, and the page that shows them.
LOOSE = {
    "load/serving.jsonl": ("serving", "serve.md"),
    "certificates/certified.jsonl": ("certificates", "guarantee.md"),
    "milliseconds/forecast.jsonl": ("milliseconds", "milliseconds.md"),
    "ray/jobs.jsonl": ("ray", "ray.md"),
}


@pytest.mark.parametrize("file", LOOSE)
def test_every_table_of_loose_records_is_the_one_that_the_records_give(file):
    study, page = LOOSE[file]
    found = records.read(HOME / "experiments" / file)
    for line in found:
        records.record_of(line)
    text = (HOME / "docs" / page).read_text(encoding="utf-8")
    tables = {STUDY: serving_tables(found), **promise_tables(found)}[study]
    assert fill(text, study, tables) == text, "run `make docs`"


def test_every_marked_table_is_of_a_study_that_exists():
    compared = {read_comparison(file).name for file in COMPARISONS}
    studies = (read_experiment(file).name for file in STUDIES)
    loose = {study for study, _ in LOOSE.values()}
    known = {"paper", "front", *loose, *compared, *studies}
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
    text = (HOME / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert fill(text, "paper", made.tables) == text, "run `make docs`"


# Studies of which some seeds are run, and what those have; their page says so.
UNDER_WAY = {
    "nested-ag-news.toml": (5, {"dense", "converted", "nested"}),
    "nested-dbpedia14.toml": (4, {"dense", "converted", "nested"}),
    "nested-imdb.toml": (2, {"dense", "converted", "nested"}),
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
    """The names that the tour's blocks of Python leave, run in their order on few rows."""
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", TOUR, flags=re.DOTALL)
    names: dict[str, object] = {}
    for code in blocks:
        small = re.sub(r"epochs=\d+", "epochs=1", code)
        small = small.replace("train=4096", "train=64, validation=32, test=32")
        exec(small.replace("print(", "str("), names)
    return names


def test_the_tours_example_runs(example):
    assert example["logits"].shape == (32, 2)


def test_what_the_tour_says_in_a_line_of_python_runs_too(example, capsys):
    """After its blocks, with the example's arguments where three dots stand."""
    lines = re.findall(r"`(with [^`]+)`", TOUR)
    assert lines
    for line in lines:
        exec(
            line.replace("…", 'model, task, recipe=recipe("dense", epochs=1), seed=7'),
            dict(example),
        )


def lines_of_shell(text):
    """The lines of a page's blocks for a shell."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def commands_of(text):
    """The words of each of our commands in a page's blocks."""
    lines = (line for line in lines_of_shell(text) if line.startswith("apportion "))
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize(("page", "least"), [("README.md", 5), ("docs/tour.md", 15)])
def test_commands_take_the_options_that_a_page_gives_them(page, least):
    commands = get_command(app).commands
    given = commands_of((HOME / page).read_text(encoding="utf-8"))
    assert len(given) >= least
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
        assert len(lost) == {"nested-ag-news": 5, "nested-dbpedia14": 4}.get(f"{kind}-{data}", 3)
        costs.append(f"{statistics.mean(lost):.{digits}f}")
    return costs


def test_what_budgets_cost_is_what_the_records_say():
    trained = lost_points("nested", "nested", 0.25, 2)
    says = "a quarter of the budget costs {} points on AG News and {} on DBpedia14"
    assert says.format(*trained) in TOUR
    now, before = (
        lost_points("nested", "converted", 0.5, 2),
        lost_points("elastic", "repaired-2", 0.5, 1),
    )
    says = "half of it costs {} and {}, where the earlier conversion cost {} and {}"
    assert says.format(*now, *before) in TOUR


def test_the_tour_shows_every_command():
    assert {words[1] for words in commands_of(TOUR)} == set(get_command(app).commands)


def test_the_front_page_is_short_and_begins_with_two_commands():
    assert len(README.split()) <= 800
    assert README.count("<!-- table: ") == 1
    assert [line.split("#")[0].strip() for line in lines_of_shell(README)[:2]] == [
        "make demo",
        "make test",
    ]
    assert README.index("make test") < 700


def test_the_front_page_shows_what_the_records_give():
    assert front_page.page() == README, "run `make docs`"
    assert front_page.FIGURE.read_text(encoding="utf-8") == front_page.picture().svg() + "\n"


def test_the_front_page_counts_the_papers_claims_as_the_report_does():
    page = (HOME / "docs" / "reproduce.md").read_text(encoding="utf-8")
    (row,) = re.findall(
        r"^\| all \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, flags=re.MULTILINE
    )
    holds, fails, untested, built = map(int, row)
    says = f"of {sum(map(int, row))} claims, {holds} hold here, {fails} do not, {untested} could"
    assert says in README and f"{built} are true by construction" in README


def test_a_server_answers_as_the_front_page_shows():
    (request,) = re.findall(r"curl \S+(/v1/\w+) .* -d '(.+)'", README)
    (shown,) = map(json.loads, re.findall(r"```json\n(.*?)```", README, flags=re.DOTALL))
    engine = ServingEngine(model(logits, config=Config(tiers=TIERS)))
    engine.start()
    try:
        reply = call(build_app(engine, name="news"), "POST", request[0], json.loads(request[1]))
    finally:
        engine.stop()
    assert reply.status == 200
    for part, real in ((shown["data"][0], reply.json["data"][0]), *_parts(shown, reply.json)):
        assert set(part) - {"…"} <= set(real)
    assert reply.json["data"][0]["budget"] == shown["data"][0]["budget"] == 0.25


def _parts(shown, real):
    return [(shown, real), (shown["apportion"], real["apportion"])]


def test_what_the_front_page_installs_can_be_installed():
    (asked,) = re.findall(r'pip install "\.\[([\w,]+)\]"', README)
    project = read_toml(HOME / "pyproject.toml")["project"]
    assert set(asked.split(",")) <= set(project["optional-dependencies"])


@pytest.fixture
def newcomer(tmp_path, monkeypatch):
    """A folder with all that the front page takes for given, small."""
    monkeypatch.chdir(tmp_path)
    write_classifier(tmp_path / "my-model", sorted(CLUES))
    write_pretrained(tmp_path / "encoder")
    folder(tmp_path / "reviews", train=60, test=24)
    told = [text for _, text in rows(120, 3000)]
    (tmp_path / "my.txt").write_text("\n".join(told) + "\n", encoding="utf-8")
    write(tmp_path / "new.csv", [(text,) for text in told[:5]], ("text",))
    return tmp_path


@pytest.mark.slow
def test_the_front_pages_commands_run_in_their_order(newcomer, capsys):
    """All but the server, which runs until it is stopped; MiniLM is a small encoder here."""
    short = {"minilm": "encoder"}
    for _, name, *words in commands_of(README):
        if name == "serve":
            continue
        given = [short.get(word, word) for word in words]
        if name in ("convert", "train"):
            given += ["--length", "24"]
        done = run(capsys, name, *given)
        assert done.code == 0, done.err
        if name == "predict":
            assert done.out.startswith("line,label,p(")
    assert (newcomer / "runs" / "mine" / "onnx" / "model.onnx").is_file()


@pytest.mark.slow
def test_the_front_pages_python_runs(newcomer):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(code.replace(", 128)", ", 24)").replace("print(", "said = list("), names)
    assert len(names["said"]) == 2
    assert {label for label, _ in names["said"]} <= set(CLUES)


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
