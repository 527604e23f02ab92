"""A run of one's own is put to work and measured once, and its page says what to do with it."""

from __future__ import annotations

import re

import pytest
from commands import run as typed
from nested_texts import nested_checkpoint
from pretrained import write_pretrained
from texts import rows, write
from written_forecast import write_forecast

from apportion.elastic.checkpoint import save
from apportion.study import demonstration, own_run, production, records
from apportion.study.own_run import DENSE, INT8, OURS, WORDS, Effort, OwnRun, measure_run, read_run
from apportion.study.report.run_page import (
    advice,
    certificate_words,
    next_commands,
    run_table,
    write_run_page,
)
from apportion.study.report.speed_figure import SpeedPoint, draw_speed

MACHINE = {"processor": "a processor", "capability": "AVX2", "cores": 2, "system": "Linux"}
KEPT = {"layer 0": {"heads": [0, 1], "feedforward": [0, 1, 2, 3]}}
HALF = {"layer 0": {"heads": [0], "feedforward": [0, 1]}}


def made_up(folder, accuracies, words=0.6):
    """A run as if its dense model had 90 of 100 texts right, and levels as many as is said."""
    traced = {"machine": MACHINE, "versions": {"apportion": "0", "torch": "0"}}
    traced |= {"python": "3", "time": "now"}
    arms = {(OURS, level): share for level, share in accuracies.items()}
    arms |= {(DENSE, 1.0): 0.9, (INT8, 1.0): 0.9, (WORDS, 1.0): words}
    measured = []
    for (arm, level), share in arms.items():
        lost = round(100 * (0.9 - share))
        said = {"rows": 100, "accuracy": share, "agreement": 0.8}
        said |= {"gained": max(0, -lost), "lost": max(0, lost)}
        measured.append({"kind": "run_answers", "arm": arm, "level": level, **said, **traced})
        speed = {OURS: 2.0 / level, DENSE: 1.0, INT8: 2.0, WORDS: 50.0}[arm]
        over = {DENSE: [speed, speed, speed], INT8: [speed / 2] * 3}
        took = {"median_ms": 320.0 / speed, "rows": 32, "tokens": 20.0, "threads": 1, "over": over}
        measured.append({"kind": "peer_latency", "arm": arm, "level": level, **took, **traced})
    text = {"text": "<b>good</b> or bad", "label": "positive"}
    text["answers"] = {"0.5": ["negative", 0.6], "1": ["positive", 0.9]}
    measured.append({"kind": "changed_text", **text, **traced})
    facts = {"levels": [0.5, 1.0], "classes": ["negative", "positive"], "kept": [HALF, KEPT]}
    facts["files"] = {"model.onnx": {"bytes": 24_000_000}}
    return OwnRun(folder, facts, measured, None)


def test_the_smallest_budget_that_loses_a_point_at_most_is_advised(tmp_path):
    run = made_up(tmp_path, {0.25: 0.7, 0.5: 0.89, 1.0: 0.9})
    said = advice(run)
    assert said.startswith("Choose 0.5: it gets 89.0 % of the test texts right, 1.0 points fewer")
    assert (
        "in 2.5 ms: 4.0x as fast as the dense model in PyTorch and 2.0x as fast as in int8" in said
    )
    assert "-b 0.5" in next_commands(run)[0][0]


def test_where_every_budget_loses_much_none_is_advised(tmp_path):
    said = advice(made_up(tmp_path, {0.5: 0.7, 1.0: 0.8}))
    assert said.startswith("No budget stays within a point of the dense model's 90.0 %; 1 comes")


def test_people_hear_if_counting_words_would_do(tmp_path):
    accuracies = {0.5: 0.9, 1.0: 0.9}
    assert "TF-IDF" not in advice(made_up(tmp_path, accuracies))
    assert "these texts may need no encoder" in advice(made_up(tmp_path, accuracies, words=0.91))


def test_the_table_has_each_budget_from_the_whole_one_down_then_the_others(tmp_path):
    table = run_table(made_up(tmp_path, {0.25: 0.7, 0.5: 0.89, 1.0: 0.9}))
    assert [row[0] for row in table.rows] == [
        "1",
        "0.5",
        "0.25",
        "dense, torch",
        "dense, int8",
        "TF-IDF",
    ]
    assert table.rows[1] == ("0.5", "89.0 %", "80.0 %", "2.50", "4.0x", "2.0x")


def test_the_page_needs_nothing_beside_it_and_texts_stay_texts(tmp_path):
    run = made_up(tmp_path, {0.5: 0.89, 1.0: 0.9})
    write_run_page(run, tmp_path / "page.html", title="Mine")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    outside = re.findall(r"""(?:src|href)=["'](?!#)([^"']+)""", html)
    assert outside == [] and "<script" not in html and "@import" not in html
    assert "&lt;b&gt;good&lt;/b&gt;" in html and "<b>good" not in html
    assert advice(run) in html and "apportion serve" in html and "width: 50%" in html


def test_what_lies_far_below_the_frame_is_named():
    levels = [(1.0, SpeedPoint("file", 2.0, 0.9)), (0.5, SpeedPoint("file", 4.0, 0.6))]
    picture = draw_speed(levels, [SpeedPoint("words", 90.0, 0.5)], caption="A caption.")
    assert picture.caption == "A caption. Below the frame: 0.5 (60.0 %), words (50.0 %)."


def test_a_run_that_was_not_measured_says_how_to(tmp_path):
    with pytest.raises(ValueError, match=r"not measured yet: `apportion report .* --measure`"):
        read_run(tmp_path)


def test_a_folder_without_a_checkpoint_is_one_sentence(capsys, tmp_path):
    done = typed(capsys, "report", str(tmp_path), "--measure")
    assert done.code == 2 and "has no checkpoint" in done.err


def forecast(runtime, **_):
    """In place of a calibration, which a busy machine refuses."""
    write_forecast(runtime.folder)


def test_a_machine_that_is_too_busy_to_calibrate_spoils_nothing(monkeypatch):
    class Uncalibrated:
        @property
        def forecast(self):
            raise ValueError("there is none")

    def busy(runtime, **_):
        raise ValueError("3 s were too few")

    said = []
    monkeypatch.setattr(own_run, "calibrate", busy)
    own_run._calibrate(Uncalibrated(), 3.0, lambda *told: said.append(told[0]))
    assert said == ["no calibration: 3 s were too few"]


@pytest.mark.slow
def test_a_run_is_measured_once_and_the_page_comes_from_its_records(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(own_run, "calibrate", forecast)
    save(nested_checkpoint(tmp_path), tmp_path / "checkpoint")
    texts = tmp_path / "new.csv"
    write(texts, [(text,) for _, text in rows(500, 9000)], ("text",))
    effort = Effort(seconds=3.0, rows=400, timed=32, disagree_at_most=0.05)
    unseen = [text for _, text in rows(500, 9000)]
    run = measure_run(tmp_path, texts=unseen, effort=effort)
    arms = {(r["arm"], r["level"]) for r in run.of_kind("run_answers")}
    assert {(DENSE, 1.0), (INT8, 1.0), (WORDS, 1.0), (OURS, 0.25), (OURS, 1.0)} <= arms
    assert arms == {(r["arm"], r["level"]) for r in run.of_kind("peer_latency")}
    dense = next(r for r in run.of_kind("run_answers") if r["arm"] == DENSE)
    assert dense["agreement"] == 1.0 and dense["gained"] == dense["lost"] == 0
    for text in run.of_kind("changed_text"):
        assert len({label for label, _ in text["answers"].values()}) > 1
    assert run.certificate is not None and certificate_words(run)
    for record in run.measured:
        assert records.record_of(dict(record)).to_dict() == record
    before = own_run.records_of(tmp_path).read_bytes()
    for work in ("export", "take_times", "calibrate", "certify"):
        monkeypatch.setattr(own_run, work, None)  # whoever calls it fails
    assert measure_run(tmp_path, texts=unseen, effort=effort) == run
    assert own_run.records_of(tmp_path).read_bytes() == before
    done = typed(capsys, "report", str(tmp_path))
    assert done.code == 0 and "over torch" in done.out and "apportion serve" in done.err
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
def test_the_demo_ends_with_a_table_and_goes_on_where_it_was(capsys, tmp_path, monkeypatch):
    encoder, data = write_pretrained(tmp_path / "encoder"), tmp_path / "run" / "data"
    data.mkdir(parents=True)
    for name, count, seed in (("train", 90, 1), ("val", 30, 500), ("test", 30, 900)):
        write(data / f"{name}.csv", rows(count, seed))
    for name, count, seed in (("unlabelled", 60, 3000), ("unseen", 400, 5000)):
        write(data / f"{name}.csv", [(text,) for _, text in rows(count, seed)], ("text",))
    monkeypatch.setattr(demonstration, "_LENGTH", 24)
    monkeypatch.setattr(demonstration, "_SEARCH", 1.0)
    monkeypatch.setattr(demonstration, "_EFFORT", Effort(3.0, 400, 32, 0.05))
    monkeypatch.setattr(own_run, "calibrate", forecast)
    monkeypatch.setattr(demonstration, "measure_run", None)
    words = ("demo", "--out", str(tmp_path / "run"), "--model", str(encoder))
    with pytest.raises(TypeError):  # as if it were killed after the training
        typed(capsys, *words)
    monkeypatch.setattr(demonstration, "measure_run", measure_run)
    monkeypatch.setattr(production, "fit", None)
    done = typed(capsys, *words)
    assert done.code == 0, done.err
    assert "dense, int8" in done.out and "over torch" in done.out
    says = done.err.splitlines()
    assert [line.split()[1] for line in says[-3:-1]] == ["predict", "serve"]
    assert says[-1].startswith(f"open {tmp_path / 'run' / 'report.html'}")
