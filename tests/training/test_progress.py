"""Without a terminal, long work says every half minute how far it is."""

from __future__ import annotations

import io
import re

import pytest
from commands import TRAIN, run
from rich.console import Console

from apportion import fit, recipe, training_bar
from apportion.data.marked import Marked
from apportion.study.bars import Bars, Overview
from apportion.study.driver.work import Piece, Work
from apportion.study.stages import Stage
from apportion.training import progress
from apportion.training.progress import Lines, Tick, working_bar


@pytest.fixture
def clock(monkeypatch):
    """Time as the test has it, in seconds."""
    now = [1000.0]
    monkeypatch.setattr("apportion.training.progress.time.monotonic", lambda: now[0])
    return now


def console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def said(where: Console) -> list[str]:
    return where.file.getvalue().splitlines()


STAGE = Stage(method="nested", task=Marked(), model={}, seed=7, budgets=(0.5,))


def test_a_stage_says_its_step_its_loss_and_the_time_left_every_half_minute(clock):
    where = console()
    with Bars(where) as bars:
        bars.started(STAGE, 1)
        for step in range(1, 91):  # a step a second
            clock[0] += 1.0
            bars.ticked(STAGE, Tick("nested", step, 200, 1, 2, loss=0.5, cost=0.25))
    label = "nested · data 1 · seed 7"
    assert said(where) == [
        f"{label}: started, 1 to do",
        f"{label}: 31 of 200  epoch 1/2  loss 0.5000  cost 0.250, about 3 min left",
        f"{label}: 61 of 200  epoch 1/2  loss 0.5000  cost 0.250, about 2 min left",
    ]


def test_the_next_part_of_a_stage_has_its_own_pace(clock):
    where = console()
    shown = Lines(where)
    shown.show("stage", "scoring", 0, 10)
    clock[0] += 40.0
    shown.show("stage", "scoring", 10, 10)
    shown.show("stage", "training", 0, 100)
    clock[0] += 30.0
    shown.show("stage", "training", 50, 100)
    assert said(where) == [
        "stage: scoring, about 0 s left",
        "stage: training, about 30 s left",
    ]


def test_work_of_unknown_size_has_no_time_left(clock):
    where = console()
    shown = Lines(where)
    shown.show("predict", "0 rows", 0, None)
    clock[0] += 31.0
    shown.show("predict", "256 rows, 8 rows/s", 256, None)
    assert said(where) == ["predict: 256 rows, 8 rows/s"]


def test_an_overview_lets_its_stages_speak(clock):
    where = console()
    with Overview(where) as overview:
        overview.planned(Work({"core": [Piece(STAGE.key)]}))
        overview.started(STAGE, 1)
        for step in (1, 2):
            clock[0] += 30.0
            overview.ticked(STAGE, Tick("nested", step, 4, loss=0.1))
    assert any("2 of 4  epoch 1/1  loss 0.1000" in line for line in said(where))


def test_a_terminal_gets_bars_and_no_lines(clock):
    where = console(terminal=True)
    with working_bar("bench", where) as bar:
        bar(0, 4)
        clock[0] += 60.0
        bar(1, 4)
    assert "about" not in where.file.getvalue()


def test_a_call_of_fit_speaks_too(task, encoder, clock, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    where = console()
    with training_bar(where) as bar:
        fit(encoder, task, recipe=recipe("dense", epochs=1), seed=7, progress=bar)
    assert all(re.match(r"dense: \d of 2  epoch 1/1  loss ", line) for line in said(where))
    assert len(said(where)) == 2


def test_commands_speak_where_stderr_is_no_terminal(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    code, _, err = run(capsys, *TRAIN.split(), "--out", str(tmp_path))
    assert code == 0 and re.search(r"dense · data 1 · seed 7: 1 of 1  epoch 1/1  loss", err)
    made = str(tmp_path / "checkpoint")
    _, _, err = run(capsys, "sweep", made, "-b", "0.5", "-b", "0.75")
    assert "sweep: 1 of 4" in err  # two budgets, soft and hard
    _, _, err = run(capsys, "bench", made, "-b", "0.5", "--repeats", "5", "--batch", "4")
    assert "bench: 8 of 8" in err
