"""The paper's tables and claims: the plan that is committed, and a small one that is run."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from commands import run
from rich.console import Console

import apportion
from apportion.data.stand_ins import write_docstrings
from apportion.elastic.evaluation import SWEEP
from apportion.study import records
from apportion.study.bars import Overview
from apportion.study.driver import local_driver as driver
from apportion.study.driver.work import Piece, Work
from apportion.study.experiment import current, read_experiment, tomllib
from apportion.study.paper import read_plan
from apportion.study.planning import QUICK, Settings, study_experiment
from apportion.study.report import paper_tables
from apportion.study.report.claim_tables import BY_CONSTRUCTION, FAILS, HOLDS

HOME = Path(__file__).parents[2]
PLAN = read_plan(HOME / "experiments" / "paper.toml")
TABLES = {  # what a study's page can show beside the tables of its own rows
    "accounting",
    "compute",
    "grid",
    "latency",
    "movement",
    "protocol",
    "ranking",
    "scoring",
    "single",
    "sweep",
    "time",
}
FIGURES = {"allocation", "equal-pretraining", "gates", "pareto", "speed"}


@pytest.mark.parametrize("table", PLAN.tables, ids=lambda table: table.name)
def test_a_table_of_the_plan_speaks_of_what_its_study_has(table):
    plan = study_experiment(PLAN, PLAN.study(table.study), Settings())
    assert set(table.methods) <= {stage.method for stage in plan.stages}
    assert set(table.shows) <= TABLES | {row.table for row in plan.rows}
    assert set(table.figures) <= FIGURES
    check_table(table, plan)


def check_table(table, plan):
    """A table of the paper asks for nothing that its study does not have."""
    methods = {stage.method for stage in plan.stages}
    named = {name for claim in table.claims for name in (claim.method, claim.against) if name}
    assert named <= methods
    measured = {*SWEEP, *plan.budgets}
    for claim in table.claims:
        assert {claim.budget, claim.against_budget} <= measured, claim.says
        if claim.measure == "speedup":
            timed = [s for s in plan.stages_of(claim.method) if s.latency]
            assert timed and claim.budget in {b for s in timed for b in s.timed_at}, claim.says


CLAIMS = [claim for table in PLAN.tables for claim in table.claims]


def test_what_the_plan_can_not_contradict_is_marked():
    """Counts of what a file declares, and theorems; all else has a rule that can fail."""
    certain = {"jobs", "minutes", "monotone", "head_parameters", "attention_macs"}
    marked = {claim.measure for claim in CLAIMS if claim.by_construction}
    assert marked == certain
    assert all(claim.by_construction for claim in CLAIMS if claim.measure in certain)


def test_every_accuracy_at_a_cost_asks_for_the_cost():
    for claim in CLAIMS:
        assert ("at cost" in claim.paper) == (claim.cost_at_most is not None), claim.says
        if claim.cost_at_most is not None:
            assert f"at cost {claim.cost_at_most:.3f}" in claim.paper


@pytest.mark.parametrize("study", [s for s in PLAN.studies if s.real], ids=lambda s: s.real)
def test_the_file_with_the_papers_own_model_answers_the_same_claims(study):
    how = Settings(hub=True)
    plan = study_experiment(PLAN, study, how)
    assert "/" in plan.model["pretrained"] and plan.task.digest is None
    assert (how.lacks(study), how.differs(PLAN, study)) == ([], "")
    for table in PLAN.tables:
        if table.study == study.name:
            check_table(table, plan)
            of_rows = set(table.shows) - TABLES
            assert of_rows - {"before-adaptation"} <= {row.table for row in plan.rows}


@pytest.mark.parametrize("study", PLAN.studies, ids=lambda study: study.name)
def test_a_quick_study_asks_for_less_and_says_so(study):
    full = study_experiment(PLAN, study, Settings())
    texts = {study.data: HOME} if study.data else {}
    how = Settings(quick=True, stand_ins=texts)
    quick = study_experiment(PLAN, study, how)
    assert ("docstrings" in how.differs(PLAN, study)) == bool(study.data)
    assert "(quick)" in quick.title and quick.beside_paper.startswith(QUICK)
    assert len(quick.seeds) == len(quick.data_seeds) == 1
    assert {s.method for s in quick.stages} == {s.method for s in full.stages}
    spent = [sum(s.recipe.epochs for s in plan.stages if s.recipe) for plan in (full, quick)]
    assert spent[1] < spent[0] or not spent[0]


def test_part_of_an_experiment_brings_its_warm_starts():
    full = read_experiment(HOME / "experiments" / "ag-news.toml")
    part = full.of_methods(["adapted"])
    assert {stage.method for stage in part.stages} == {"dense", "budgeted", "adapted"}
    assert {stage.key for stage in part.stages} <= {stage.key for stage in full.stages}


# The command, on a plan of its own.

STUDY = """
name = "small"
title = "Small"
budgets = [0.5]
[task]
kind = "marked"
length = 12
values = 4
distractors = 2
train = 64
validation = 32
test = 32
[model]
layers = 2
heads = 4
hidden = 16
feedforward = 32
[seeds]
data = [1]
optimisation = [7, 8]
[[stage]]
method = "dense"
recipe = "dense"
epochs = 2
[[stage]]
method = "budgeted"
from = "dense"
recipe = "budgeted"
epochs = 2
[[stage]]
method = "random"
from = "dense"
score = "random"
[[row]]
name = "Dense"
method = "dense"
form = "dense"
budget = 1.0
paper_accuracy = "99.4"
"""
TEXTS = STUDY.replace("small", "texts").replace(
    'kind = "marked"\nlength = 12\nvalues = 4\ndistractors = 2\ntrain = 64\nvalidation = 32',
    'kind = "text"\ndata = "somebody/texts"\nlength = 12\ntrain = 64\nvalidation = 32',
)
SMALL_PLAN = """
title = "A paper"
source = "nowhere"
machine = "somebody's"
[texts.news]
here = "other news"
stand_in = ["rich", "typer"]
[[study]]
file = "small.toml"
[study.quick]
epochs = 1
task = { train = 32 }
[[study]]
file = "texts.toml"
data = "news"
model_is = "an encoder of our own"
[study.quick]
epochs = 1
task = { train = 48 }
[[table]]
name = "core"
title = "Core results"
place = "Table 1"
study = "small"
shows = ["core"]
figures = ["pareto"]
printed = [["method", "control"], ["Dense", "single cost"]]
[[table.claims]]
says = "Dense is above chance."
paper = "99.4"
method = "dense"
form = "dense"
at_least = 1.0
[[table.claims]]
says = "It is perfect."
paper = "100"
method = "dense"
form = "dense"
at_least = 100.1
[[table.claims]]
says = "It takes one training."
paper = "1"
measure = "jobs"
method = "dense"
by_construction = "the file says so"
at_least = 1
at_most = 1
[[table]]
name = "news"
title = "News"
place = "Table 2"
study = "texts"
shows = ["core"]
"""


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    home = tmp_path_factory.mktemp("plan")
    for name, text in (("paper", SMALL_PLAN), ("small", STUDY), ("texts", TEXTS)):
        (home / f"{name}.toml").write_text(text, encoding="utf-8")
    return home / "paper.toml"


def reproduce(capsys, plan_file, out, *words):
    given = ["reproduce", *words, "--plan", str(plan_file), "--out", str(out), "--jobs", "1"]
    return run(capsys, *given)


@pytest.mark.slow
def test_a_quick_run_needs_nothing_and_marks_every_output(plan_file, tmp_path, capsys):
    code, out, err = reproduce(capsys, plan_file, tmp_path, "--quick")
    assert code == 0, err
    assert "(quick)" in out and "Quick: far fewer rows" in " ".join(err.split())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for shown in (page, text):
        assert QUICK in shown and "somebody&#39;s" in shown.replace("'", "&#39;")
        assert "an encoder of our own; docstrings of installed packages in place of the" in shown
        assert "Core results (quick)" in shown and "News (quick)" in shown
        assert "As the paper prints it" in shown and "single cost" in shown
        assert shown.count("does not hold") > shown.count("Dense is above chance.") == 1
    assert (tmp_path / "figures" / "small-pareto.png").read_bytes().startswith(b"\x89PNG")
    assert "small-pareto.svg" in text and "Quick run, no evidence." in text
    assert "quick run, no evidence" in (tmp_path / "figures" / "small-pareto.svg").read_text(
        "utf-8"
    )
    before = {file.name: file.read_bytes() for file in (tmp_path / "results").iterdir()}
    code, _, err = reproduce(capsys, plan_file, tmp_path, "--quick")
    assert code == 0 and "started" not in err  # nothing is run twice
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "results").iterdir()}


def test_a_study_without_its_data_is_left_out_and_named(plan_file, tmp_path, capsys):
    code, out, err = reproduce(capsys, plan_file, tmp_path, "--json")
    assert code == 0
    assert "texts is left out; it needs --data news=FOLDER" in err
    assert "not complete: news (texts)" in err
    totals = json.loads(out)["verdicts"][-1]
    assert (totals[HOLDS], totals[FAILS], totals[BY_CONSTRUCTION]) == ("1", "1", "1")
    study = read_experiment(plan_file.with_name("small.toml"))
    have = current(study, records.read(tmp_path / "results" / "small.jsonl"))
    assert {r["method"] for r in have} == {"dense", "budgeted", "random"}
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "The rest needs --data news=FOLDER." in page and "other news" in page


def test_a_named_table_runs_what_it_needs_and_no_more(plan_file, tmp_path, capsys):
    code, _, err = reproduce(capsys, plan_file, tmp_path, "core", "--quick")
    assert code == 0
    assert "dense · data 1 · seed 7: done" in err and "random" not in err
    assert not (tmp_path / "data").exists()  # no texts were asked for


@pytest.fixture(scope="module")
def core(plan_file, tmp_path_factory):
    """One table, reproduced by the function: where, what was printed, and what came of it."""
    home = tmp_path_factory.mktemp("core")
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        made = apportion.reproduce("core", plan_file, quick=True, out=home, jobs=1)
    return home, out.getvalue() + err.getvalue(), made


def test_reproduce_is_a_function_that_says_nothing(core, plan_file):
    home, said, made = core
    assert said == ""
    assert made.tables[0].rows
    assert (made.verdicts[HOLDS], made.verdicts[FAILS]) == (1, 1)
    assert "(quick)" in made.verdict_table.title
    assert (made.failed, made.incomplete) == ({}, {})
    assert QUICK in made.page.read_text("utf-8") and QUICK in made.markdown.read_text("utf-8")
    again = apportion.reproduce("core", plan_file, quick=True, out=home, report_only=True)
    assert again.verdicts == made.verdicts


def test_a_watcher_hears_of_the_work_and_of_what_is_left_out(plan_file, tmp_path, monkeypatch):
    heard = []

    class Ear(Overview):
        def planned(self, work):
            heard.append(work)
            raise KeyboardInterrupt  # before anything is trained

        def warned(self, message):
            heard.append(message)

    monkeypatch.setattr("apportion.study.reproduction.Overview", Ear)
    with pytest.raises(KeyboardInterrupt):
        apportion.reproduce((), plan_file, out=tmp_path, jobs=3)
    left_out, work = heard
    assert left_out == "texts is left out; it needs --data news=FOLDER"
    study = read_experiment(plan_file.with_name("small.toml"))
    core = {Piece(stage.key) for stage in study.stages_of("dense")}
    beyond = {Piece(stage.key) for stage in study.stages} - core
    assert work.tables == {"Core results": core, "beyond the paper, small": beyond}
    assert (work.jobs, work.done) == (3, set())


def test_a_study_that_fails_leaves_the_others_to_run(plan_file, tmp_path, monkeypatch, capsys):
    run_study = driver.run

    def failing(experiment, *rest, **options):
        if experiment.name == "small":
            raise OSError("the disk is full")
        return run_study(experiment, *rest, **options)

    monkeypatch.setattr(driver, "run", failing)
    code, _, err = reproduce(capsys, plan_file, tmp_path, "--quick")
    assert code == 1 and "small failed: the disk is full" in err
    assert "not complete: core (small)" in err
    assert "random · data 1 · seed 7: done" in err  # of the other study


def test_a_run_that_is_stopped_says_how_to_go_on(plan_file, tmp_path, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "run", stopped)
    code, out, err = reproduce(capsys, plan_file, tmp_path, "core", "--quick")
    assert (code, out) == (130, "") and "the same command goes on where it was" in err


def test_files_are_parsed_and_tables_built_once_a_run(core, plan_file, tmp_path, monkeypatch):
    """Also with texts of one's own, which are compared with those that the file names."""
    write_docstrings(tmp_path / "news", ["rich", "typer"], train=60, test=20)
    shutil.copytree(core[0], tmp_path / "out")
    parsed, built = Counter(), []
    loads, verdict_table = tomllib.loads, paper_tables.verdict_table
    monkeypatch.setattr(tomllib, "loads", lambda text: parsed.update([text]) or loads(text))
    monkeypatch.setattr(
        paper_tables, "verdict_table", lambda found: built.append(1) or verdict_table(found)
    )
    data = {"news": tmp_path / "news"}
    made = apportion.reproduce(
        (), plan_file, quick=True, data=data, out=tmp_path / "out", report_only=True
    )
    assert "texts of a folder (digest" in made.markdown.read_text("utf-8")
    assert set(parsed) == {SMALL_PLAN, STUDY, TEXTS} and set(parsed.values()) == {1}
    assert built == [1]


def test_no_job_is_an_error(plan_file, tmp_path):
    with pytest.raises(ValueError, match="jobs must be at least 1, not 0"):
        apportion.reproduce((), plan_file, out=tmp_path / "out", jobs=0)
    assert not (tmp_path / "out").exists()


def test_the_list_says_what_tables_need(plan_file, tmp_path, capsys):
    code, out, _ = reproduce(capsys, plan_file, tmp_path, "--list", "--json")
    assert code == 0
    core, news = json.loads(out)["list"]
    assert (core["needs"], core["stages"]) == ("–", "2")
    assert news["needs"] == "--data news=FOLDER"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["none"], "there is no table 'none'; there are core, news"),
        (["--data", "none=HOME"], "--data takes news=FOLDER, not 'none=HOME'"),
        (["--data", "news"], "--data takes news=FOLDER"),
        (["--data", "news=HOME/none"], "there is no folder HOME/none"),
        (["--quick", "--hub"], "choose one of them"),
        (["--device", "cuda"], "there is none here"),
        (["--device", "toaster"], "none that torch knows"),
        (["--report-only"], "nothing to report"),
        (["core", "--fill", "README.md"], "not with --quick or names"),
    ],
)
def test_a_wrong_word_is_one_sentence(plan_file, tmp_path, capsys, words, complaint):
    given = [word.replace("HOME", str(tmp_path)) for word in words]
    code, out, err = reproduce(capsys, plan_file, tmp_path / "out", *given)
    assert code == 2 and out == ""
    assert complaint.replace("HOME", str(tmp_path)) in " ".join(err.split())
    assert not (tmp_path / "out").exists()


def test_without_a_plan_people_learn_where_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "reproduce", "--quick")
    assert code == 2 and "in a clone of the project" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('study = "texts"', 'study = "none"', "is of study 'none', which is not listed"),
        ("at_least = 1.0", "", "needs a method and at_least or at_most"),
        ("at_least = 1.0", "atleast = 1.0", "unknown keys atleast"),
        ("at_least = 1.0", 'at_least = 1.0\nstatistic = "split"', "at_least and at_most to split"),
        ("at_least = 1.0", 'at_least = 1.0\nstatistic = "overlap"', "against for an overlap"),
        (
            "at_least = 1.0",
            'at_least = 1.0\nmeasure = "jobs"\ncost_at_most = 0.5',
            "cost_at_most without accuracy",
        ),
        ('name = "news"', 'name = "core"', "the same name"),
        ("[texts.news]", "[texts.olds]", "has nothing for 'news'"),
        ('source = "nowhere"', "", "'source' is missing"),
        ("[study.quick]\nepochs = 1", "[study.quick]\nsteps = 1", "unknown keys steps"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(tmp_path, old, new, complaint):
    assert old in SMALL_PLAN
    (tmp_path / "paper.toml").write_text(SMALL_PLAN.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"paper.toml: .*{complaint}"):
        read_plan(tmp_path / "paper.toml")


def test_docstrings_stand_in_for_texts(tmp_path):
    write_docstrings(tmp_path, ["rich", "typer"], train=30, test=10)
    rows = {
        name: list(csv.DictReader(io.StringIO((tmp_path / f"{name}.csv").read_text("utf-8"))))
        for name in ("train", "test")
    }
    assert [len(rows[name]) for name in ("train", "test")] == [64, 16]
    assert {row["label"] for row in rows["train"]} == {"rich", "typer"}
    assert not {r["text"] for r in rows["train"]} & {r["text"] for r in rows["test"]}
    assert all(len(row["text"].split()) >= 6 for row in rows["train"])
    with pytest.raises(ValueError, match="package 'nobodys' is not installed"):
        write_docstrings(tmp_path, ["nobodys"])


def test_the_overview_knows_what_is_left(plan_file):
    study = read_experiment(plan_file.with_name("small.toml"))
    dense, other = (stage for stage in study.stages_of("dense"))
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    made, timed, old = Piece(dense.key), Piece(dense.key, timed=True), Piece("old")
    tables = {"Core": {made, timed, Piece(other.key)}, "Done": {old}}
    overview = Overview(console)
    overview.planned(Work(tables, {old}, {made: 60.0, timed: 30.0}, jobs=2))
    assert overview.seconds_left() is None  # nothing is known of the other one
    overview.started(dense, 2)
    console.print(overview._render())
    overview.finished(dense, 90.0)
    assert overview.seconds_left() == pytest.approx(45.0 + 30.0)  # the other, and timing alone
    assert overview.summary() == "2 of 4 pieces, about 1 min left"
    overview.started(other, 1)
    overview.finished(other, 30.0)
    overview.started(dense, 1)  # again: it is timed now
    assert overview.seconds_left() == pytest.approx(30.0, abs=5)
    overview.finished(dense, 30.0)
    assert overview.summary() == "4 of 4 pieces"
    shown = console.file.getvalue()
    assert "running" in shown and "done" in shown
