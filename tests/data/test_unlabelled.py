"""Texts without labels: which ones a task takes, and that nothing else changes with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from texts import folder, rows, write

from apportion.data.rows import Row
from apportion.data.sources import Part
from apportion.data.text import Text
from apportion.data.unlabelled import find_texts, read_texts
from apportion.study.experiment import task_of

SPLITS = ("train", "validation", "test")


def texts(count: int, seed: int = 9000) -> list[str]:
    return [text for _, text in rows(count, seed)]


def write_texts(path: Path, lines: list[str], header: str = "text") -> None:
    write(path, [(line,) for line in lines], (header,))


@pytest.fixture
def data(tmp_path) -> Path:
    return folder(tmp_path / "texts")


@pytest.fixture
def spec(data) -> Text:
    return Text(str(data), length=12, train=60, validation=24, test=15, min_count=1)


def test_rows_that_were_not_drawn_are_taken_and_no_split_has_one(spec, data):
    task = replace(spec, unlabelled=20).build()
    free = set(task.unlabelled.texts)
    assert len(free) == 20
    for name in SPLITS:
        assert not free & set(task.split(name).texts)
    assert free <= {row[1] for row in rows(120, 1)}
    assert len(replace(spec, unlabelled=1000).build().unlabelled) == 120 - 60 - 24


def test_they_are_encoded_as_the_others_are_and_have_no_label(spec):
    task = replace(spec, unlabelled=20).build()
    split = task.unlabelled
    assert torch.equal(split.labels, torch.full((20,), -1))
    again = task.words.pad(task.words.encode(split.texts), spec.length)
    for name, values in task.train.inputs.items():
        assert split.inputs[name].shape == (20, 12) and split.inputs[name].dtype == values.dtype
        assert torch.equal(split.inputs[name], again[name])


def test_the_other_splits_and_the_words_are_drawn_as_without_them(spec, data):
    plain = spec.build()
    write_texts(data / "unlabelled.csv", [f"{text} zeppelin" for text in texts(30)])
    for source in ("file", "train"):
        task = replace(spec, unlabelled=20, unlabelled_from=source).build()
        for name in SPLITS:
            assert task.split(name).digest() == plain.split(name).digest()
            assert task.split(name).texts == plain.split(name).texts
        assert task.words.to_json() == plain.words.to_json()
        assert task.facts["splits"] == plain.facts["splits"]


def test_labels_of_rows_that_were_not_drawn_are_not_looked_at(data):
    def found(label):
        undrawn = Part("train.csv, line", tuple(Row(2, text, label) for text in texts(5)))
        return find_texts(str(data), "train", text=("text",), label="label", undrawn=undrawn)

    assert found("sport") == found("money") == found("")


def test_without_them_keys_and_digests_are_as_they_were(spec):
    assert not [name for name in spec.identity() if "unlabelled" in name]
    task = spec.build()
    assert task.unlabelled is None and "unlabelled" not in task.facts
    assert not [name for name in task.spec if "unlabelled" in name]


def test_with_them_they_count(spec, data):
    task = replace(spec, unlabelled=20).build()
    fewer = replace(spec, unlabelled=19).build()
    assert len({spec.build().digest(), task.digest(), fewer.digest()}) == 3
    assert replace(spec, unlabelled=20).identity() == {**spec.identity(), "unlabelled": 20}
    assert replace(spec, unlabelled=20).identity() != replace(spec, unlabelled=19).identity()


def test_the_seed_chooses_them(spec):
    spec = replace(spec, unlabelled=20, unlabelled_from="train")
    assert spec.build().unlabelled.texts == spec.build().unlabelled.texts
    assert spec.build().unlabelled.texts != replace(spec, seed=2).build().unlabelled.texts


def test_a_file_in_the_folder_comes_before_training_rows(spec, data):
    spec = replace(spec, unlabelled=20)
    assert spec.build().facts["unlabelled"]["source"] == "train.csv, rows that were not drawn"
    write_texts(data / "unlabelled.csv", texts(30))
    task = spec.build()
    assert set(task.unlabelled.texts) < set(texts(30)) and len(task.unlabelled) == 20
    assert task.facts["unlabelled"]["source"] == "unlabelled.csv"
    task = replace(spec, unlabelled_from="train").build()
    assert not set(task.unlabelled.texts) & set(texts(30))


@pytest.mark.parametrize("name", ["more.csv", "more.txt"])
def test_a_file_is_taken_by_its_path(spec, tmp_path, name):
    (tmp_path / name).write_text("text\n" * (name == "more.csv") + "one more\nanother\n\nthird\n")
    task = replace(spec, unlabelled=9, unlabelled_from=str(tmp_path / name)).build()
    assert sorted(task.unlabelled.texts) == ["another", "one more", "third"]
    assert task.facts["unlabelled"]["source"] == name  # and no path of this machine


def test_columns_are_those_of_the_task_or_the_text(tmp_path):
    write(tmp_path / "both.csv", [("A title", "a body", "x")], ("title", "body", "text"))
    write_texts(tmp_path / "one.csv", ["whole"])
    assert read_texts(tmp_path / "both.csv", ("title", "body")).texts == ("A title a body",)
    assert read_texts(tmp_path / "one.csv", ("title", "body")).texts == ("whole",)


def test_what_stands_in_test_or_validation_is_left_out_and_counted(spec, data):
    """Of the files all rows, drawn or not: more of them may be measured on later."""
    ending = "the coach of the league said that it was a match for the new market in orbit 42"
    test = [*rows(30, 5000), ("sport", f"A title: {ending}!")]
    write(data / "test.csv", test)
    write(data / "val.csv", rows(30, 7000))
    lines = [
        test[3][1].upper(),
        test[29][1].replace(" ", "  "),
        rows(30, 7000)[4][1],
        f"Another title - {ending}",
        *texts(5),
    ]
    write_texts(data / "unlabelled.csv", lines)
    task = replace(spec, unlabelled=20).build()
    assert set(task.unlabelled.texts) == set(texts(5))
    facts = task.facts["unlabelled"]
    assert (facts["rows"], facts["in_test"], facts["doubles"]) == (5, 4, 0)
    wider = replace(spec, unlabelled=20, test=31).build()
    assert wider.unlabelled.texts == task.unlabelled.texts


def test_doubles_are_left_out_and_counted(spec, data):
    trained = spec.build().train.texts[0]
    write_texts(data / "unlabelled.csv", [*texts(5), texts(1)[0].upper(), trained, "??", "!!"])
    task = replace(spec, unlabelled=20).build()
    assert set(task.unlabelled.texts) == {*texts(5), "??", "!!"}
    facts = task.facts["unlabelled"]
    assert (facts["rows"], facts["in_test"], facts["doubles"]) == (7, 0, 2)


def test_labels_in_the_file_are_ignored_and_that_is_said(spec, data):
    write(data / "unlabelled.csv", [("sport", text) for text in texts(5)])
    task = replace(spec, unlabelled=20).build()
    assert task.facts["unlabelled"]["had_labels"] and set(task.unlabelled.labels.tolist()) == {-1}
    write_texts(data / "unlabelled.csv", texts(5))
    assert not replace(spec, unlabelled=20).build().facts["unlabelled"]["had_labels"]


def test_only_texts_with_the_digest_are_taken(spec, data, tmp_path):
    write_texts(data / "unlabelled.csv", texts(30))
    spec = replace(spec, unlabelled=20)
    digest = spec.build().spec["unlabelled_digest"]
    pinned = replace(spec, unlabelled_digest=digest)
    assert pinned.build().unlabelled.texts == spec.build().unlabelled.texts
    elsewhere = replace(pinned, unlabelled_from="elsewhere.csv")
    assert pinned.identity() == elsewhere.identity()  # a digest says more than a path
    write_texts(data / "unlabelled.csv", [*texts(29), "another"])
    with pytest.raises(ValueError, match=f"unlabelled.csv are not those .*, not {digest}"):
        pinned.build()


def test_a_task_is_built_again_from_its_spec(spec, data):
    write_texts(data / "unlabelled.csv", texts(30))
    task = replace(spec, unlabelled=20).build()
    assert task_of(task.spec).build().digest() == task.digest()


BAD = {
    "no column": (b"body\nhello\n", "there is no column 'text'; the columns are 'body'"),
    "empty": (b"", "unlabelled.csv is empty"),
    "header only": (b"text\n", "unlabelled.csv has no rows"),
    "not UTF-8": (b"text\nfine\ncaf\xe9\n", "unlabelled.csv, line 3: not UTF-8"),
    "an empty text": (b'text\nfine\n" "\n', "unlabelled.csv, line 3: the text is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named_with_its_line(spec, data, case):
    content, says = BAD[case]
    (data / "unlabelled.csv").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        replace(spec, unlabelled=20).build()


@pytest.mark.parametrize("name", ["texts.tsv", "texts.jsonl", "texts.parquet"])
def test_lines_that_are_no_texts_are_not_taken_for_some(spec, tmp_path, name):
    (tmp_path / name).write_text('{"text": "a match"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=f"{name}: texts are read from a CSV file"):
        replace(spec, unlabelled=20, unlabelled_from=str(tmp_path / name)).build()


def test_what_leaves_no_text_is_refused(spec, data):
    write_texts(data / "unlabelled.csv", [text for _, text in rows(30, 5000)])
    with pytest.raises(ValueError, match=r"unlabelled.csv: no text is left .* 30 are in val"):
        replace(spec, unlabelled=20).build()
    with pytest.raises(ValueError, match=r"train.csv: all rows are drawn"):
        replace(spec, train=None, unlabelled=20, unlabelled_from="train").build()
    with pytest.raises(ValueError, match=r"there is no file .*none.csv of unlabelled texts"):
        replace(spec, unlabelled=20, unlabelled_from=str(data / "none.csv")).build()
    with pytest.raises(ValueError, match="is a folder; give a file"):
        replace(spec, unlabelled=20, unlabelled_from=str(data)).build()
    with pytest.raises(ValueError, match="unlabelled needs at least 2 rows, not 0"):
        replace(spec, unlabelled=0)
    with pytest.raises(ValueError, match="unlabelled_from needs unlabelled"):
        replace(spec, unlabelled_from="train")
