"""A comparison of runtimes: its file, its records, its goals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from commands import run
from nested_texts import nested_checkpoint

from apportion.data.sources import read_source
from apportion.elastic.checkpoint import save
from apportion.serving.bench.peer_files import PeerFiles
from apportion.serving.bench.peers import PEERS
from apportion.study import records
from apportion.study.comparison import Goal, is_comparison, read_comparison
from apportion.study.peer_measuring import (
    Subject,
    measure_answers,
    measure_switching,
    measure_times,
)
from apportion.study.production import task_of_checkpoint
from apportion.study.report.peer_goals import Reached, is_met, read_goal
from apportion.study.report.peer_tables import comparison_tables

OURS = ("torch", "views", "file", "file-int8")
FILE = """
name = "small"
title = "small"
shapes = ["2 x 8"]
repeats = 5
grouped_rows = 0
batch = 8

[subjects]
"Some Texts" = "{digest}"

[[goal]]
says = "the file beside the views"
measure = "difference"
arm = "file"
at_most = 1e-4

[[goal]]
says = "int8 at 0.5"
arm = "file-int8"
level = 0.5
over = "torch"
shape = "2 x 8"
at_least = 0.001

[[goal]]
says = "a forecast"
untested = "another page"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("comparison")
    checkpoint = nested_checkpoint(home)
    save(checkpoint, home / "checkpoint")
    digest = read_source(str(home / "data"), ("text",), "label").digest()
    (home / "small.toml").write_text(FILE.format(digest=digest))
    task = task_of_checkpoint(checkpoint)
    files = PeerFiles(checkpoint, home / "work", task.train.texts)
    return home, Subject("Some Texts", "abc", digest, files, task)


@pytest.fixture(scope="module")
def measured(home):
    _, subject = home
    inputs = subject.filled(2, 8)
    found = [
        *measure_answers(subject, batch=8, names=OURS),
        *measure_times(
            subject, [inputs], shape="2 x 8", threads=1, repeats=5, warmup=0, names=OURS
        ),
        *measure_switching(subject, (1, 8), repeats=5),
    ]
    return [record.to_dict() for record in found]


def test_every_record_is_a_value_of_its_kind(measured):
    for line in measured:
        assert records.record_of(line).to_dict() == json.loads(json.dumps(line))


def test_every_arm_has_its_answers_and_its_time_at_every_level(home, measured):
    _, subject = home
    arms = [("torch", 1.0), *((a, level) for a in OURS[1:] for level in subject.files.levels)]
    for kind in ("peer_answers", "peer_latency"):
        found = [(r["arm"], r["level"]) for r in measured if r["kind"] == kind]
        assert found == arms
    for r in measured:
        if r["kind"] == "peer_answers":
            assert ("alone" in r) == (r["arm"] == "file-int8")
            assert r["rows"] == len(subject.task.test)
            if r["arm"] == "file":
                assert r["beside"] == "views" and r["difference"] < 1e-4 and r["agreement"] == 1
        if r["kind"] == "peer_latency":
            ratio, low, high = r["over"]["torch"]
            assert low <= ratio <= high and r["median_ms"] > 0
            assert r["arm"] != "torch" or ratio == 1


def test_static_int8_answers_a_row_alone_as_in_a_batch(measured):
    found = [r["alone"] for r in measured if "alone" in r]
    assert found and set(found) == {1.0}


def test_a_batch_is_filled_with_the_tokens_of_texts(home):
    _, subject = home
    inputs = subject.filled(3, 16)
    assert inputs["input_ids"].shape == (3, 16) and inputs["attention_mask"].all()
    stream = [token for ids in subject.encoded() for token in ids]
    assert inputs["input_ids"].ravel().tolist() == stream[:48]
    with pytest.raises(ValueError, match="the model reads 32 tokens of a text, not 64"):
        subject.filled(1, 64)


def test_tables_show_what_the_records_say_and_goals_what_was_reached(home, measured):
    place, subject = home
    plan = read_comparison(place / "small.toml")
    tables = {table.name: table for table in comparison_tables(plan, measured)}
    assert set(tables) == {
        "goals",
        "machines",
        "summary",
        "speed-some-texts-1",
        "beside-int8-some-texts-1",
        "answers-some-texts",
        "memory-some-texts",
        "left-out",
    }
    assert [row[-1] for row in tables["goals"].rows] == ["yes", "yes", "another page"]
    speed = tables["speed-some-texts-1"]
    assert speed.columns == ("way", "level", "accuracy, %", "2 x 8")
    assert len(speed.rows) == 1 + 3 * len(subject.files.levels)
    assert speed.rows[0][0] == "torch eager"
    assert speed.rows[0][3].endswith(" ms, 1.00x (1.00 – 1.00)")
    summary = tables["summary"]
    assert summary.columns == ("way", "level", "Some Texts, %", "2 x 8")
    assert summary.rows[0][-1] == "1.0x" and len(summary.rows) == 1 + 3 * 3  # 1, 0.5 and 0.25
    assert tables["memory-some-texts"].rows == ()


def test_without_records_no_goal_is_met_and_no_table_has_a_number(home):
    place, _ = home
    tables = comparison_tables(read_comparison(place / "small.toml"), [])
    assert [row[2:] for row in tables[0].rows[:2]] == [("–", "not yet")] * 2
    assert all(not table.rows for table in tables[1:])


def test_records_of_other_weights_are_older_ones(home, measured):
    place, _ = home
    plan = read_comparison(place / "small.toml")
    later = {**measured[0], "weights": "later"}
    tables = comparison_tables(plan, [*measured, later])
    assert [row[-1] for row in tables[0].rows[:2]] == ["not yet", "not yet"]


def latency(arm, ratio):
    return {
        "kind": "peer_latency",
        "arm": arm,
        "level": 1.0,
        "shape": "8 x 128",
        "threads": 1,
        "over": {"onnxruntime-int8": ratio},
    }


def test_slower_is_read_from_the_ratio_with_its_ends_turned_round():
    goal = Goal("", "slower", "file-int8", 1.0, "onnxruntime-int8", "8 x 128", at_most=2)
    found = read_goal(goal, [latency("file-int8", [0.98, 0.95, 1.0])])
    assert found is not None
    assert (round(found.value, 2), round(found.low, 2), round(found.high, 2)) == (2.04, 0, 5.26)
    assert is_met(goal, found)  # 2.0, as it is shown
    assert not is_met(goal, Reached(2.06))
    assert read_goal(replace(goal, threads=2), [latency("file-int8", [0.98, 0.95, 1.0])]) is None


def test_lost_accuracy_is_to_the_same_level_in_single_precision():
    points = [("file", 0.5, 0.9), ("file", 1.0, 0.95), ("file-int8", 0.5, 0.899)]
    points += [("file-int8", 1.0, 0.946)]
    have = [
        {"kind": "peer_answers", "arm": a, "level": b, "accuracy": c, "beside": "file"}
        for a, b, c in points
    ]
    goal = Goal("", "lost", "file-int8", at_most=0.4)
    assert round(read_goal(goal, have).value, 6) == 0.4
    assert round(read_goal(replace(goal, statistic="mean"), have).value, 6) == 0.25
    assert round(read_goal(replace(goal, level=0.5), have).value, 6) == 0.1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"2 x 8"]', '"2x8"]', "a shape is rows x tokens, as '8 x 128', not '2x8'"),
        ('arm = "file"\n', 'arm = "fast"\n', "a goal needs at_least or at_most and an arm, one of"),
        ('over = "torch"\n', "", "a goal of speedup needs over, what it is compared with"),
        ("batch = 8", "bach = 8", "the file has unknown keys bach"),
        ('shape = "2 x 8"', 'shape = "1 x 8"', "a goal is of shape '1 x 8', which is not timed"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, old, new, says):
    assert old in FILE
    file = tmp_path / "bad.toml"
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"bad.toml: {says}"):
        read_comparison(file)


def test_other_data_than_the_subjects_is_refused(home, capsys, tmp_path):
    place, _ = home
    file = tmp_path / "other.toml"
    file.write_text(FILE.replace("{digest}", "0123"))
    assert is_comparison(file)
    code, _, said = run(capsys, "run", str(file), "--model", str(place / "checkpoint"))
    assert code == 2 and "and the comparison is of Some Texts (0123)" in " ".join(said.split())
    code, _, said = run(capsys, "run", str(file))
    assert code == 2 and "it takes --model CHECKPOINT" in " ".join(said.split())
    assert not list(tmp_path.glob("results/*"))


def test_joules_of_an_arm_reach_its_record_and_a_table(home, monkeypatch):
    place, subject = home
    used = iter([8.0, 4.0, 2.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr("apportion.study.peer_measuring.read_counters", lambda: {"package": 1})
    monkeypatch.setattr("apportion.study.peer_measuring.joules_per_call", lambda _: next(used))
    found = measure_times(
        subject,
        [subject.filled(2, 8)],
        shape="2 x 8",
        threads=1,
        repeats=5,
        warmup=0,
        names=("torch", "views"),
    )
    lines = [record.to_dict() for record in found]
    assert [line["joules"] for line in lines[:2]] == [4.0, 2.0]  # of two rows
    tables = comparison_tables(read_comparison(place / "small.toml"), lines)
    (energy,) = [one for one in tables if one.name.startswith("energy-")]
    assert energy.rows[0][-1] == "4"


def test_parts_that_were_asked_for_are_measured_alone(home, capsys, monkeypatch, tmp_path):
    place, _ = home
    file = tmp_path / "small.toml"
    file.write_text((place / "small.toml").read_text())
    asked = []
    for name in ("answers", "memory", "switching", "throughput", "times"):
        measure = f"apportion.study.comparison.measure_{name}"
        monkeypatch.setattr(measure, lambda *_, name=name, **__: asked.append(name) or [])
    words = ("run", str(file), "--model", str(place / "checkpoint"), "--runs", str(tmp_path / "w"))
    assert run(capsys, *words, "--parts", "answers, memory")[0] == 0
    assert set(asked) == {"answers", "memory"} and asked.count("answers") == len(PEERS)
    code, _, said = run(capsys, *words, "--parts", "speed")
    assert code == 2 and "has the parts times, switching" in " ".join(said.split())


@pytest.mark.slow
def test_bench_times_a_checkpoint_beside_its_peers(home, capsys, monkeypatch):
    place, subject = home
    monkeypatch.setenv("PATH", "")  # so there is no compiler, and one arm less
    checkpoint = str(place / "checkpoint")
    words = ("bench", checkpoint, "--peers", "--batch", "2", "--repeats", "5")
    code, out, said = run(capsys, *words, "--json")
    assert code == 0, said
    found = json.loads(out)
    timed = {(r["arm"], r["level"]) for r in found if r["kind"] == "peer_latency"}
    assert {("file-int8", level) for level in subject.files.levels} <= timed
    assert ("onnxruntime-int8", 1.0) in timed and {r["rows"] for r in found if "rows" in r} == {2}
    assert "torch-compiled" in {r["arm"] for r in found if r["kind"] == "peer_left_out"}
    code, _, said = run(capsys, *words, "-b", "0.5")
    assert code == 2 and "at the levels that its export has" in " ".join(said.split())


@pytest.mark.slow
def test_the_command_measures_every_arm_once_and_fills_the_page(home, capsys, monkeypatch):
    """Also in a run that is started again: what has its records is not measured twice."""
    place, subject = home
    monkeypatch.setenv("PATH", "")  # so there is no compiler, and one arm less
    file, results = place / "small.toml", place / "results" / "small.jsonl"
    words = ("run", str(file), "--model", str(place / "checkpoint"), "--runs", str(place / "runs"))
    code, _, said = run(capsys, *words, "--json")
    assert code == 0, said
    have = records.read(results)
    for line in have:
        assert records.record_of(line).to_dict() == line
    kinds = {line["kind"] for line in have}
    assert {"peer_answers", "peer_latency", "peer_memory", "peer_switching"} <= kinds
    left_out = {line["arm"] for line in have if line["kind"] == "peer_left_out"}
    timed = {line["arm"] for line in have if line["kind"] == "peer_latency"}
    assert timed | left_out == {peer.name for peer in PEERS}
    assert "torch-compiled" in left_out and {"torch", "file-int8"} <= timed
    served = {r["served"]: r for r in have if r["kind"] == "peer_memory"}
    assert served["one-session-per-level"]["sessions"] == len(subject.files.levels)
    assert served["file-int8"]["file_bytes"] < served["file"]["file_bytes"]
    assert run(capsys, *words, "--json")[0] == 0
    assert records.read(results) == have
    page = place / "page.md"
    page.write_text("<!-- table: small/goals -->\n<!-- end of table -->\n")
    assert run(capsys, "report", str(file), "--fill", str(page))[0] == 0
    assert "| the file beside the views | ≤ 0.0001 |" in page.read_text()
