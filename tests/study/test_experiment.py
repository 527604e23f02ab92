from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from witnesses import Quiet

from apportion.elastic.checkpoint import load, weights_digest
from apportion.study import records
from apportion.study.completion import is_done
from apportion.study.driver import local_driver as driver
from apportion.study.experiment import current, parse_experiment, read_experiment
from apportion.study.report.accounting import accounting_table
from apportion.study.report.claim_tables import goal_table
from apportion.study.report.markdown import fill
from apportion.study.report.page import write_page
from apportion.study.report.query import select
from apportion.study.report.study_tables import study_tables
from apportion.study.stages import checkpoint_folder

SMALL = """
name = "small"
budgets = [0.25, 0.5]
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
data = [1, 2]
optimisation = [7, 8]
[[stage]]
method = "dense"
recipe = "dense"
epochs = 2
grid = true
[[stage]]
method = "budgeted"
from = "dense"
recipe = "budgeted"
epochs = 2
[[stage]]
method = "adapted"
from = "budgeted"
teacher = "budgeted"
recipe = "adapt"
latency = true
[[stage]]
method = "static"
from = "dense"
recipe = "static"
epochs = 1
each = [0.25, 0.5]
[[stage]]
method = "post-hoc"
from = "dense"
score = "loss-increase"
[[stage]]
method = "random"
from = "dense"
score = "random"
[[row]]
name = "Dense full"
method = "dense"
form = "dense"
budget = 1.0
paper_cost = "1.000"
paper_accuracy = "99.4"
[[claim]]
says = "dense"
method = "dense"
form = "dense"
at_least = 101.0
[[claim]]
says = "curve"
measure = "monotone"
method = "budgeted"
statistic = "lowest"
at_least = 1
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The small experiment, run once."""
    home = tmp_path_factory.mktemp("experiment")
    (home / "small.toml").write_text(SMALL)
    plan = read_experiment(home / "small.toml")
    watcher = Quiet()
    have = driver.run(plan, home / "runs", results=home / "small.jsonl", watcher=watcher)
    return home, plan, have, watcher


def test_every_stage_leaves_its_records(ran):
    _, plan, have, watcher = ran
    # 4 dense cells, 2 budgeted, 2 adapted (and timed), 4 static, 2 post-hoc, 2 random
    assert len(plan.stages) == 16
    assert all(is_done(stage, have) for stage in plan.stages)
    assert len(watcher.done) == 18
    assert len(select(have, kind="point", method="dense")) == 4
    assert len(select(have, kind="point", method="budgeted", seed=7, form="soft")) == 19
    assert len(select(have, kind="point", method="static", budget=0.5, form="soft")) == 2
    assert len(select(have, kind="point", method="random", budget=0.25)) == 2
    assert {r["form"] for r in select(have, kind="latency")} == {
        "dense",
        "soft",
        "hard",
        "skip",
        "cut",
    }
    for record in have:
        if record["kind"] in ("stage", "latency"):
            assert {"time", "command", "versions", "machine", "seed"} <= set(record)
        assert records.record_of(record).to_dict() == record


def test_a_second_run_does_nothing(ran):
    home, plan, have, _ = ran
    again = Quiet()
    assert driver.run(plan, home / "runs", results=home / "small.jsonl", watcher=again) == have
    assert (again.trained, again.done) == (set(), [])


def test_records_alone_are_enough_not_to_train_again(ran, tmp_path):
    home, plan, _, _ = ran
    (tmp_path / "small.jsonl").write_text((home / "small.jsonl").read_text())
    watcher = Quiet()
    results = tmp_path / "small.jsonl"
    driver.run(plan, tmp_path / "no models here", results=results, watcher=watcher, jobs=2)
    assert watcher.done == []


def test_a_lost_record_is_measured_again_without_training(ran, tmp_path):
    home, plan, have, _ = ran
    lost = plan.stages[4]
    for record in have:
        if record["stage"] != lost.key:
            records.append(tmp_path / "small.jsonl", record)
    watcher = Quiet()
    driver.run(plan, home / "runs", results=tmp_path / "small.jsonl", watcher=watcher)
    assert watcher.done == [lost.label]
    assert watcher.trained == set()


def test_warm_starts_are_shared(ran):
    home, plan, _, _ = ran
    dense = [p for p in (home / "runs").iterdir() if p.name.startswith("dense-")]
    assert len(dense) == 4
    parents = {s.parent.key for s in plan.stages if s.method in ("budgeted", "static", "random")}
    assert len(parents) == 2


@pytest.mark.slow
def test_one_job_and_two_give_the_same_weights(ran, tmp_path):
    home, plan, _, _ = ran
    watcher, results = Quiet(), tmp_path / "small.jsonl"
    have = driver.run(plan, tmp_path / "runs", results=results, watcher=watcher, jobs=2)
    assert all(is_done(stage, have) for stage in plan.stages) and len(watcher.done) == 18
    for stage in plan.stages:
        if stage.recipe:
            one, two = (checkpoint_folder(stage, h / "runs") for h in (home, tmp_path))
            assert weights_digest(load(one).model) == weights_digest(load(two).model)


def test_tables_are_counted_from_what_was_run(ran):
    _, plan, have, _ = ran
    jobs = {row[0]: row[1:] for row in accounting_table(plan, have).rows}
    assert jobs["dense"] == ("1", "1 model", "one cost")
    assert jobs["budgeted"] == ("2", "1 model", "continuous")
    assert jobs["adapted"] == ("3", "1 model", "continuous")
    assert jobs["static"] == ("3", "2 models", "discrete")
    assert jobs["post-hoc"] == ("1", "1 model + 2 masks", "discrete")


def test_a_goal_is_not_met_by_part_of_the_runs(ran):
    _, plan, have, _ = ran
    some = [r for r in have if r.get("seed") != 8]
    reached = goal_table(plan, some).rows[1][2:]
    assert reached == ("budgeted was measured in 1 of 2 runs", "–", "–", "not yet")


@pytest.mark.slow
def test_a_stage_that_fails_ends_the_run_and_is_named(tmp_path):
    """The other stage is ended too: nobody waits for it."""
    failing = SMALL.replace("epochs = 2\ngrid = true", "epochs = 2000\nlr = 1e30\nwarmup = 0.0", 1)
    (tmp_path / "small.toml").write_text(failing)
    plan = read_experiment(tmp_path / "small.toml")
    with pytest.raises(ValueError, match=r"dense · data 1 · seed \d: the loss is") as failed:
        results = tmp_path / "small.jsonl"
        driver.run(plan, tmp_path / "runs", results=results, watcher=Quiet(), jobs=2)
    assert "in run_stage" in str(failed.value.__cause__)  # where, in the other process
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_and_leaves_nobody_behind(tmp_path):
    class Killing(Quiet):
        def ticked(self, stage, tick):
            for worker in multiprocessing.active_children():
                worker.kill()

    plan = parse_experiment(SMALL.replace("epochs = 2", "epochs = 2000", 1))
    with pytest.raises(OSError, match="a worker process was ended; run the same command again"):
        results = tmp_path / "small.jsonl"
        driver.run(plan, tmp_path / "runs", results=results, watcher=Killing(), jobs=2)
    assert multiprocessing.active_children() == []


def test_goals_are_judged_by_the_records(ran):
    _, plan, have, _ = ran
    missed, held = goal_table(plan, have).rows
    assert missed[0] == "dense"
    assert missed[-1] == "no"
    assert held[2:] == ("2 of 2 (n = 2)", "–", "–", "yes")


def test_the_report_shows_every_table_and_picture(ran, tmp_path):
    _, plan, have, _ = ran
    write_page(plan, have, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 5
    for table in study_tables(plan, have):
        assert f'id="{table.name}"' in page
        assert table.title in page
    assert "http" not in page.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "").replace("https://matplotlib.org", "")


def test_marked_tables_are_filled_and_unknown_ones_refused(ran):
    _, plan, have, _ = ran
    tables = study_tables(plan, have)
    text = "before\n<!-- table: small/grid -->\nold\n<!-- end of table -->\nafter"
    filled = fill(text, plan.name, tables)
    assert "old" not in filled
    assert "data seed 2" in filled
    assert fill(filled, plan.name, tables) == filled
    assert fill(text, "another", tables) == text
    with pytest.raises(ValueError, match="no table 'grud'"):
        fill(text.replace("grid", "grud"), plan.name, tables)


def test_there_is_nothing_to_report_before_a_run(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    plan = read_experiment(tmp_path / "small.toml")
    with pytest.raises(ValueError, match="run it first"):
        write_page(plan, current(plan, []), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('name = "small"', "nam = 3", "unknown keys nam"),
        ('name = "small"', "", "'name' is missing"),
        ("length = 12", "lenght = 12", r"\[task\] has unknown keys lenght"),
        ("layers = 2", "depth = 2", r"\[model\] has unknown keys depth"),
        ("data = [1, 2]", "rows = 3", r"\[seeds\] has unknown keys rows"),
        ('kind = "marked"', 'kind = "sonnets"', "kind must be one of marked, text"),
        ('recipe = "budgeted"', 'recipe = "budgetted"', "unknown recipe 'budgetted'; known: dense"),
        ("epochs = 2", "epoch = 2", "stage 'dense' has unknown keys epoch; known: T, alpha"),
        ('score = "random"', 'score = "dice"', "unknown score 'dice'; known: loss-increase"),
        ('from = "budgeted"', 'from = "nobody"', "not one earlier stage"),
        ('method = "random"\n', "", "has no method"),
        ("budgets = [0.25, 0.5]", "budgets = [0.25, 1.5]", r"in \(0, 1\]"),
        ("each = [0.25, 0.5]", "each = [0]", r"in \(0, 1\]"),
        ("at_least = 1\n", "at_lest = 1\n", r"\[\[claim\]\] has unknown keys at_lest"),
        ("heads = 4", "heads = 3", "hidden=16 is not a multiple of heads=3"),
        ("[task]", "[task", "not TOML"),
        ("optimisation = [7, 8]", "", "optimisation must list different seeds"),
        ("data = [1, 2]", "data = []", "data must list different seeds"),
        ("data = [1, 2]", "data = [-1]", "none below 0"),
        ("data = [1, 2]", "data = [1, 1]", "different seeds"),
        ('method = "random"', 'method = "dense"', "two stages of method 'dense'"),
        (
            'method = "adapted"\nfrom = "budgeted"',
            'method = "adapted"\nfrom = "static"',
            "not one earlier",
        ),
        ("latency = true", "latency = 1", "latency must be true or false"),
        ('name = "small"', "name = 3", "name must be text"),
        ("[task]", "[[task]]", "task must be a table"),
        ("epochs = 2", "select_at = []", "at least one budget"),
        ("epochs = 2", "budgets = [0.5]", "a low and a high one"),
        ("data = [1, 2]", 'data = ["one"]', "a list, each a whole number"),
        ("length = 12", 'length = "12"', "length must be a whole number, not '12'"),
        ("epochs = 2", "epochs = 2.5", "epochs must be a whole number, not 2.5"),
        ("epochs = 2", "budgets = 0.5", "budgets must be a list, each a number"),
        ("at_least = 1\n", "ratio = 1\n", "ratio must be true or false"),
        ("budgets = [0.25, 0.5]", "budgets = 0.5", "budgets must be a list"),
        ('from = "dense"\nscore = "random"', 'score = "random"', "needs 'from'"),
        ("grid = true", "latency = true", "no budgets"),
        ("layers = 2", 'norm = "side"', r"norm must be 'pre' or 'post'"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, before, after, says):
    assert before in SMALL
    path = tmp_path / "wrong.toml"
    path.write_text(SMALL.replace(before, after, 1))
    with pytest.raises(ValueError, match=says):
        read_experiment(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no experiment file"):
        read_experiment(tmp_path / "none.toml")


def test_every_experiment_of_the_project_can_be_read():
    folder = Path(__file__).parents[2] / "experiments"
    others = {folder / "paper.toml", folder / "runtime.toml"}  # a plan, and a comparison
    files = sorted(set(folder.rglob("*.toml")) - others)
    assert len(files) > 10
    for file in files:
        assert read_experiment(file).name == file.stem


@pytest.mark.slow
def test_a_killed_command_goes_on_to_the_same_weights(tmp_path):
    """A real kill after the first stage, and the same command again."""

    def train(name: str):
        command = [sys.executable, "-m", "apportion.cli", "train", "--out", str(tmp_path / name)]
        size = ["--rows", "1024", "--length", "12", "--hidden", "16", "--heads", "4"]
        epochs = ["--epochs", "2", "--budgeted-epochs", "4"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*command, *size, *epochs], **quiet)

    assert train("whole").wait() == 0
    killed = train("killed")
    stages = tmp_path / "killed" / "stages"
    while killed.poll() is None and not list(stages.glob("dense-*/apportion.json")):
        time.sleep(0.02)
    time.sleep(0.3)  # somewhere in the stage after the warm start
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "checkpoint").exists()
    assert train("killed").wait() == 0
    whole, rest = (load(tmp_path / name / "checkpoint").model for name in ("whole", "killed"))
    assert weights_digest(whole) == weights_digest(rest)
    assert (tmp_path / "killed" / "report.html").stat().st_size > 10_000
