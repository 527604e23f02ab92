"""What is said of each test row is kept, belongs to its rows, and agrees with the records."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from commands import run
from studies import STUDY
from texts import folder
from witnesses import Quiet

from apportion.data.task import CLASSIFICATION, Split
from apportion.study import records
from apportion.study.answers import (
    Answers,
    Said,
    answers_file,
    check_same_rows,
    dense_of,
    has_answers,
    noting,
    read_answers,
    read_file,
    rows_digest,
)
from apportion.study.baselines import tfidf_logistic
from apportion.study.driver import local_driver as driver
from apportion.study.experiment import parse_experiment
from apportion.study.measuring import run_stage
from apportion.study.report.paired import WORDS
from apportion.study.report.query import select
from apportion.study.report.study_tables import study_tables

ANSWERED = "answers = true\n" + STUDY.replace("latency = true\n", "").split("[[claim]]")[0]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    home = tmp_path_factory.mktemp("answers")
    plan = parse_experiment(ANSWERED)
    have = driver.run(plan, home / "runs", results=home / "study.jsonl", watcher=Quiet())
    return plan, have, home


@pytest.fixture
def copied(ran, tmp_path):
    plan, _, home = ran
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    return plan, tmp_path


def answers_of(right, rows="the rows", measures="m"):
    """Answers at 0.5, cut, that are right where it says; every label is 1."""
    right = np.asarray(right)
    half = np.full(len(right), 0.5, np.float16)
    said = Said(right.astype(np.uint8), half, half)
    return Answers(measures, rows, np.ones(len(right), np.uint8), {("cut", 0.5): said})


def test_every_point_has_answers_with_its_accuracy_and_its_loss(ran):
    plan, have, home = ran
    answers = read_answers(plan.stages, home / "study.jsonl")
    assert set(answers) == {stage.key for stage in plan.stages}
    points = select(have, kind="point")
    for point in points:
        kept, where = answers[point["stage"]], (point["form"], point["budget"])
        assert point["accuracy"] == round(float(kept.right(*where).mean()), 6)
        loss = kept.said[where].loss.astype(np.float64).mean()
        assert loss == pytest.approx(point["loss"], rel=1e-3)
        assert point["ece"] == round(kept.calibration_error(*where), 6)
        assert kept.said[where].predicted.dtype == np.uint8
        assert kept.said[where].confidence.dtype == kept.said[where].loss.dtype == np.float16
    assert sum(len(kept.said) for kept in answers.values()) == len(points)
    assert len({kept.rows for kept in answers.values()}) == 1


def test_agreement_is_with_the_dense_model_of_the_same_seed(ran):
    plan, have, home = ran
    answers = read_answers(plan.stages, home / "study.jsonl")
    (dense,) = plan.stages_of("dense")
    whole = answers[dense.key].said["dense", 1.0].predicted
    for point in select(have, kind="point"):
        if point["method"] == "dense":
            assert "agreement" not in point
            continue
        said = answers[point["stage"]].said[point["form"], point["budget"]]
        assert point["agreement"] == round(float((said.predicted == whole).mean()), 6)
    assert all(dense_of(s) is dense or s is dense for s in plan.stages)
    assert dense_of(dense) is None


def test_answers_stand_in_the_order_of_the_rows_whatever_batches_do():
    lengths = torch.tensor([5, 2, 4, 1, 3])
    ids = torch.arange(1, 6).repeat(5, 1)
    mask = torch.arange(5) < lengths[:, None]
    labels = torch.tensor([0, 1, 0, 1, 1])
    split, said = noting(Split({"input_ids": ids, "attention_mask": mask}, labels))
    for inputs, read in split.batches(2):
        longer = inputs["attention_mask"].sum(dim=1) > 2
        logits = torch.stack([longer.float() * 9, (~longer).float() * 9], dim=1)
        assert torch.equal(
            split.criterion.loss(logits, read), CLASSIFICATION.loss(logits, read[:, 0])
        )
        split.criterion.score(logits, read)
    (one,) = said
    assert one.predicted.tolist() == [0, 1, 0, 1, 0]
    assert (one.loss > 1).tolist() == [False, False, False, False, True]
    assert one.confidence == pytest.approx(1 / (1 + np.exp(-9.0)), abs=1e-3)


def test_the_calibration_error_is_that_of_its_bins():
    """Two rows at 0.6, one right; two at 0.95, both right: (|1 - 1.2| + |2 - 1.9|) / 4."""
    confidence = np.array([0.6, 0.6, 0.95, 0.95], np.float16)
    said = Said(np.array([1, 0, 1, 1], np.uint8), confidence, confidence)
    answers = Answers("m", "r", np.ones(4, np.uint8), {("cut", 0.5): said})
    assert answers.calibration_error("cut", 0.5) == pytest.approx(0.075, abs=1e-3)
    sure = Said(np.array([1, 1, 1, 0], np.uint8), confidence, np.ones(4, np.float16))
    wrong = Answers("m", "r", np.ones(4, np.uint8), {("cut", 0.5): sure})
    assert wrong.calibration_error("cut", 0.5) == 0.25


def test_missing_answers_are_measured_again_and_nothing_is_trained(copied):
    plan, home = copied
    results = home / "study.jsonl"
    (nested,) = plan.stages_of("nested")
    file = answers_file(nested, results)
    before = file.read_bytes()
    assert driver.unfinished(plan, records.read(results), results=results) == ([], [])
    file.unlink()
    todo, _ = driver.unfinished(plan, records.read(results), results=results)
    assert [stage.key for stage in todo] == [nested.key]
    watcher = Quiet()
    driver.run(plan, home / "runs", results=results, watcher=watcher)
    assert watcher.done == [nested.label] and not watcher.trained
    assert file.read_bytes() == before


def test_answers_of_other_rows_than_are_measured_now_are_made_again(copied):
    plan, home = copied
    results = home / "study.jsonl"
    stage = plan.stages[0]
    stale = answers_of([1, 0], measures="older")
    stale.write(answers_file(stage, results))
    assert not has_answers(stage, results)
    assert stage.key not in read_answers(plan.stages, results)
    todo, _ = driver.unfinished(plan, records.read(results), results=results)
    assert [stage.key for stage in todo] == [plan.stages[0].key]


def test_a_stage_is_measured_beside_a_dense_model_whose_answers_are_still_missing(copied):
    plan, home = copied
    results = home / "study.jsonl"
    (nested,), (dense,) = plan.stages_of("nested"), plan.stages_of("dense")
    expected = [p for p in records.read(results) if p.get("stage") == nested.key]
    answers_file(dense, results).unlink()
    again = run_stage(nested, home / "runs", results=results)
    by_point = {(p["form"], p["budget"]): p["agreement"] for p in again if p["kind"] == "point"}
    assert by_point == {
        (p["form"], p["budget"]): p["agreement"] for p in expected if p["kind"] == "point"
    }


def test_answers_to_other_rows_are_refused(copied):
    plan, home = copied
    results = home / "study.jsonl"
    (nested,), (dense,) = plan.stages_of("nested"), plan.stages_of("dense")
    kept = read_file(answers_file(dense, results))
    Answers(kept.measures, "other", kept.labels, kept.said).write(answers_file(dense, results))
    with pytest.raises(ValueError, match=r"different test rows: digests .*other"):
        run_stage(nested, home / "runs", results=results)
    check_same_rows("one", "one")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_one_sentence_and_the_next_run_makes_it_again(copied, share):
    plan, home = copied
    results = home / "study.jsonl"
    file = answers_file(plan.stages[0], results)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"not readable as answers .*; remove it") as said:
        read_answers(plan.stages, results)
    assert "\n" not in str(said.value)
    assert not has_answers(plan.stages[0], results)
    driver.run(plan, home / "runs", results=results, watcher=Quiet())
    assert file.read_bytes() == whole


def test_a_file_with_objects_is_not_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", measures=np.array([{}], dtype=object))
    np.save(tmp_path / "b.npz.npy", np.ones(3))
    for name in ("a.npz", "b.npz.npy"):
        with pytest.raises(ValueError, match="not readable as answers"):
            read_file(tmp_path / name)


def test_answers_of_unequal_lengths_are_not_read(tmp_path):
    kept = answers_of([1, 0, 1])
    Answers("m", "r", np.ones(4, np.uint8), kept.said).write(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="one answer per row"):
        read_file(tmp_path / "a.npz")


def test_a_study_that_does_not_ask_for_answers_has_none(tmp_path):
    stage = parse_experiment(STUDY).stages[0]
    found = run_stage(stage, tmp_path / "runs", results=tmp_path / "study.jsonl")
    assert not (tmp_path / "study").exists()
    assert not {"ece", "agreement"} & {name for record in found for name in record}
    asked = parse_experiment(ANSWERED).stages[0]
    assert (asked.key, asked.measures) == (stage.key, stage.measures)


def test_rows_are_the_same_whatever_words_a_model_has():
    texts, labels = ("a b", "c"), torch.tensor([0, 1])
    one = Split({"input_ids": torch.tensor([[1, 2], [3, 0]])}, labels, texts)
    other = Split({"input_ids": torch.tensor([[7, 8], [9, 0]])}, labels, texts)
    assert rows_digest(one) == rows_digest(other)
    assert rows_digest(one) != rows_digest(one.take(torch.tensor([1, 0])))
    assert rows_digest(one) != rows_digest(Split(one.inputs, labels.flip(0), texts))


def test_a_baseline_of_words_has_answers_too(tmp_path):
    study = """
name = "words"
answers = true
test_rows = "all"
[task]
kind = "text"
data = "x"
length = 20
min_count = 1
[model]
layers = 1
heads = 2
hidden = 16
feedforward = 32
[seeds]
data = [7, 13]
optimisation = [7, 13]
paired = true
[[stage]]
method = "tfidf"
baseline = "tfidf-logistic"
"""
    plan = parse_experiment(study, folder(tmp_path / "data"))
    have = driver.run(plan, tmp_path / "runs", results=tmp_path / "r.jsonl", watcher=Quiet())
    answers = read_answers(plan.stages, tmp_path / "r.jsonl")
    first, second = (answers[stage.key] for stage in plan.stages)
    assert first.rows == second.rows
    for stage, point in zip(plan.stages, select(have, kind="point"), strict=True):
        right = answers[stage.key].right("baseline", 1.0)
        assert point["accuracy"] == round(float(right.mean()), 6)
        outcome, _ = tfidf_logistic(stage.measured_on(stage.task.build()))
        assert round(outcome.accuracy, 6) == point["accuracy"] and "agreement" not in point


def test_each_method_stands_beside_the_dense_model_row_by_row(ran):
    plan, have, home = ran
    answers = read_answers(plan.stages, home / "study.jsonl")
    tables = {table.name: table for table in study_tables(plan, have, answers=answers)}
    rows = [dict(zip(tables["paired"].columns, row, strict=True)) for row in tables["paired"].rows]
    assert [(row["method"], row["budget"]) for row in rows] == [
        *((method, budget) for method in ("order",) for budget in ("0.25", "0.50")),
        *(("nested", budget) for budget in ("0.25", "0.50", "1.00")),
        *((method, b) for method in ("specialist", "uniform") for b in ("0.25", "0.50")),
    ]
    (dense,) = select(have, kind="point", form="dense")
    for row in rows:
        at = {"method": row["method"], "budget": float(row["budget"])}
        (point,) = select(have, kind="point", form="cut", **at)
        points = 100 * (point["accuracy"] - dense["accuracy"])
        assert row["points"] == f"{points:+.2f} ({points:+.2f})"  # one seed, and so shown
        assert row["same class as dense, %"] == f"{100 * point['agreement']:.2f}"
        assert row["calibration error, %"] == f"{100 * point['ece']:.2f}"
        assert row["in words"] in WORDS and row["McNemar"] in ("0 of 1", "1 of 1")
    assert not {"paired", "paired-specialists"} & {t.name for t in study_tables(plan, have)}


def test_the_one_checkpoint_stands_beside_specialists_at_each_budget_and_on_average(ran):
    plan, have, home = ran
    answers = read_answers(plan.stages, home / "study.jsonl")
    (table,) = [
        t for t in study_tables(plan, have, answers=answers) if t.name == "paired-specialists"
    ]
    assert [row[:2] for row in table.rows] == [
        ("nested - specialist", at) for at in ("0.25", "0.50", "mean over 2")
    ]
    first, second, mean = (float(row[2].split()[0]) for row in table.rows)
    assert mean == pytest.approx((first + second) / 2, abs=0.011)
    for budget, found in ((0.25, first), (0.5, second)):
        at = {"kind": "point", "form": "cut", "budget": budget}
        (mine,), (theirs,) = (select(have, method=m, **at) for m in ("nested", "specialist"))
        assert found == pytest.approx(100 * (mine["accuracy"] - theirs["accuracy"]), abs=0.01)


def test_commands_make_missing_answers_again_and_report_them(copied, capsys):
    plan, home = copied
    file, kept = home / "study.toml", home / "results" / "study"
    kept.parent.mkdir()
    for name in ("study", "study.jsonl"):
        (home / name).rename(kept.parent / name)
    answers_file(plan.stages[0], kept.with_suffix(".jsonl")).unlink()
    goal = """[[claim]]
says = "as good"
method = "nested"
form = "cut"
budget = 0.5
against = "dense"
at_least = -100.0
"""
    file.write_text(ANSWERED + goal)
    code, out, _ = run(capsys, "run", str(file), "--runs", str(home / "runs"), "--json")
    assert code == 0 and json.loads(out)["goals"][0]["paired test"] in WORDS
    assert {path.stem for path in kept.iterdir()} == {stage.key for stage in plan.stages}
    code, out, _ = run(capsys, "report", str(file), "--json")
    tables = json.loads(out)
    assert code == 0 and {"paired", "paired-specialists"} <= set(tables)
    assert tables["goals"][0]["paired test"] in WORDS
    assert 'id="paired"' in (home / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_stages_that_run_side_by_side_keep_the_same_answers(ran, tmp_path):
    plan, _, home = ran
    results = tmp_path / "study.jsonl"
    driver.run(plan, tmp_path / "runs", results=results, watcher=Quiet(), jobs=2)
    for stage in plan.stages:
        alone = read_file(answers_file(stage, home / "study.jsonl"))
        beside = read_file(answers_file(stage, results))
        assert alone.rows == beside.rows and list(alone.said) == list(beside.said)
        for point in alone.said:
            assert np.array_equal(alone.right(*point), beside.right(*point))
