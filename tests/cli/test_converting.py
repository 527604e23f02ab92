"""`apportion convert`: texts alone, or texts with their classes; and what is vouched for."""

from __future__ import annotations

import json

import pytest
from commands import run
from pretrained import write_classifier
from texts import CLUES, folder, rows, write

from apportion.cli.running import made_in_words
from apportion.elastic.checkpoint import load


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_classifier(tmp_path_factory.mktemp("model"), list(CLUES)))


def texts_of(home, count=900):
    file = home / "texts.txt"
    file.write_text("\n".join(text for _, text in rows(count, 1)), encoding="utf-8")
    return str(file)


def test_texts_alone_make_a_checkpoint_that_vouches_for_its_range(capsys, tmp_path, model):
    words = ["convert", model, "--texts", texts_of(tmp_path), "--length", "20"]
    words += ["--out", str(tmp_path / "out"), "--json"]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    told = json.loads(out)["agreement"]
    assert [row["budget"] for row in told] == ["0.125", "0.25", "0.375", "0.5", "0.75", "1"]
    assert "other texts (at least" in err and "checkpoint:" in err
    made = load(tmp_path / "out" / "checkpoint")
    vouched = made.notes["training"]["vouched"]
    assert vouched["rows"] == 900 // 3 - 100, "a third is held out, and a third of that chooses"
    assert made.elastic.lowest == vouched.get("from", 1.0)
    assert made.elastic.first_token and made.words is not None


@pytest.mark.slow
def test_few_texts_vouch_for_nothing_which_is_said(capsys, tmp_path, model):
    words = ["convert", model, "--texts", texts_of(tmp_path, 60), "--length", "20"]
    code, _, err = run(capsys, *words, "--out", str(tmp_path / "out"))
    said = " ".join(err.split())
    assert code == 0 and "not vouched for: 10 texts were left for it" in said, err
    assert "which can only rule budgets out, and 200 are needed" in said
    made = load(tmp_path / "out" / "checkpoint")
    assert made.elastic.lowest == made.notes["training"]["vouched"].get("from", 1.0)


@pytest.mark.slow
def test_labels_in_a_file_of_texts_are_not_looked_at_which_is_said(capsys, tmp_path, model):
    file = tmp_path / "texts.csv"
    write(file, rows(60, 1))
    words = ["convert", model, "--texts", str(file), "--length", "20"]
    code, _, err = run(capsys, *words, "--out", str(tmp_path / "out"))
    assert code == 0 and "texts.csv has labels; they are not looked at" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give --data, texts with their classes, or --texts, a file without them"),
        (["--data", "a", "--texts", "b"], "give --data, texts with their classes, or --texts"),
        (["--texts", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--texts", "nowhere.txt", "--units", "rows"], "--units is one of heads, all"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_made(capsys, tmp_path, model, words, says):
    code, _, err = run(capsys, "convert", model, *words, "--out", str(tmp_path / "out"))
    assert code == 2 and says in err and not (tmp_path / "out").exists()


def test_a_model_without_classes_of_its_own_is_refused(capsys, tmp_path):
    code, _, err = run(capsys, "convert", "minilm", "--texts", texts_of(tmp_path))
    assert code == 2 and "LABEL_0" in err


@pytest.mark.slow
def test_with_labels_the_range_stands_in_the_checkpoint_and_lower_budgets_in_the_table(
    capsys, tmp_path, model
):
    home = folder(tmp_path / "texts", train=1000, test=400)
    words = ["convert", model, "--data", str(home), "--length", "20", "--rows", "100", "--json"]
    words += ["--held-out", "320", "--agreement", "0.99", "--out", str(tmp_path / "out")]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert json.loads(out)["budgets"][0]["budget asked"] == "0.125"
    made = load(tmp_path / "out" / "checkpoint")
    told = made.notes["training"]["vouched"]
    assert (
        told["asked"] == 0.99
        and told["rows"] >= 200
        and made.elastic.lowest == told.get("from", 1.0)
    )


def test_tuning_that_had_no_time_is_said():
    assert "tuning:     none: 256 views" in made_in_words({"tuned": {"rows": 0}})
    assert made_in_words({}) == ""
