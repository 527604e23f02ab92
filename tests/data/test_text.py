from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from texts import CLUES, folder, rows, write

from apportion.data.rows import BadRow, _records, read_csv
from apportion.data.sources import read_hub, read_source
from apportion.data.task import Split
from apportion.data.text import Text
from apportion.data.tokenizer import Tokenizer

AG_NEWS = Path(__file__).parents[3] / "shared" / "data" / "ag_news"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return folder(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def task(data):
    return Text(str(data), length=12, train=60, validation=24, test=15, min_count=1).build()


def test_splits_have_the_sizes_and_the_shares_that_were_asked_for(task):
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [60, 24, 15]
    assert task.classes == tuple(sorted(CLUES))
    for name, each in (("train", 20), ("validation", 8), ("test", 5)):
        assert task.split(name).labels.bincount().tolist() == [each] * 3


def test_shares_are_those_of_the_file_when_classes_are_uneven(tmp_path):
    uneven = [r for n, r in enumerate(rows(90, 1)) if r[0] != "money" or n % 2]
    write(tmp_path / "train.csv", uneven)
    task = Text(str(tmp_path), train=50, validation=11, test=10).build()
    whole = Counter(label for label, _ in uneven)
    for split in (task.train, task.validation, task.test):
        for n, name in enumerate(task.classes):
            exact = len(split) * whole[name] / len(uneven)
            assert (
                abs(int((split.labels == n).sum()) - exact) < 1.7
            )  # what was drawn before moves it


@pytest.mark.parametrize(
    ("rows_of", "size", "taken"),
    [
        ((50, 30, 20), 7, (4, 2, 1)),  # shares of 3.5, 2.1 and 1.4
        ((50, 30, 20), 8, (4, 2, 2)),  # of 4, 2.4 and 1.6
        ((34, 33, 33), 10, (4, 3, 3)),  # of 3.4, 3.3 and 3.3
    ],
)
def test_the_largest_remainders_round_up(tmp_path, rows_of, size, taken):
    counts = zip("abc", rows_of, strict=True)
    lines = [(name, f"{name} {n}") for name, count in counts for n in range(count)]
    for name in ("train", "val", "test"):
        write(tmp_path / f"{name}.csv", lines)
    task = Text(str(tmp_path), train=size, validation=size, test=size).build()
    for name in ("train", "validation", "test"):
        assert tuple(task.split(name).labels.bincount().tolist()) == taken


def test_every_text_and_label_counts_for_a_digest(tmp_path, data):
    """Of a source, and of the rows that are drawn from it."""

    def digests(change):
        home = folder(tmp_path / f"{len(list(tmp_path.iterdir()))}", train=30, test=9)
        write(home / "val.csv", rows(9, 900))
        for name in ("train", "val", "test"):
            path = home / f"{name}.csv"
            path.write_text(change(name, path.read_text()))
        source = read_source(str(home), ["text"], "label").digest()
        return source, Text(str(home), min_count=1).build().digest()

    def other_label(text):
        lines = text.splitlines()
        first, second = lines[1].split(",", 1), lines[2].split(",", 1)
        lines[1], lines[2] = f"{second[0]},{first[1]}", f"{first[0]},{second[1]}"
        return "\n".join(lines) + "\n"

    whole = digests(lambda name, text: text)
    assert digests(lambda name, text: text) == whole
    for changed in ("train", "val", "test"):
        other = digests(lambda name, text, at=changed: other_label(text) if name == at else text)
        assert other[0] != whole[0] and other[1] != whole[1], changed
    split = Text(str(data)).build().train
    assert replace(split, labels=split.labels.flip(0)).digest() != split.digest()


def test_no_row_is_in_two_splits_and_test_rows_come_from_the_test_file(task, data):
    texts = [set(task.split(name).texts) for name in ("train", "validation", "test")]
    assert not texts[0] & texts[1] and not texts[2] & (texts[0] | texts[1])
    with (data / "test.csv").open(encoding="utf-8", newline="") as file:
        assert texts[2] <= {row["text"] for row in csv.DictReader(file)}


def test_the_same_seed_draws_the_same_rows_and_another_others(task, data):
    spec = Text(str(data), length=12, train=60, validation=24, test=15, min_count=1)
    assert spec.build().digest() == task.digest()
    assert replace(spec, seed=2).build().digest() != task.digest()


def test_without_sizes_all_rows_are_used_and_a_tenth_is_held_out(data, tmp_path):
    task = Text(str(data)).build()
    assert (len(task.train), len(task.validation), len(task.test)) == (108, 12, 30)
    write(tmp_path / "train.csv", rows(100, 1))
    task = Text(str(tmp_path)).build()
    assert (len(task.train), len(task.validation), len(task.test)) == (80, 10, 10)
    assert not set(task.train.texts) & {*task.validation.texts, *task.test.texts}


def test_a_validation_file_is_used_where_there_is_one(data, tmp_path):
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_bytes((data / name).read_bytes())
    write(tmp_path / "val.csv", rows(9, 9000))
    task = Text(str(tmp_path)).build()
    assert (len(task.train), len(task.validation)) == (120, 9)


def test_the_vocabulary_comes_from_training_rows_alone(data, tmp_path):
    write(tmp_path / "train.csv", rows(60, 1))
    write(tmp_path / "test.csv", [("sport", "the zeppelin match")] * 2)
    task = Text(str(tmp_path), validation=6, min_count=1, length=8).build()
    ids = task.test.inputs["input_ids"][0, :3].tolist()
    assert [n == task.words.unknown for n in ids] == [False, True, False]
    assert task.facts["splits"]["test"]["unknown"] == pytest.approx(1 / 3, abs=1e-3)
    assert task.facts["splits"]["train"]["unknown"] == 0.0


def test_duplicates_are_counted(tmp_path):
    train = rows(60, 1)
    write(tmp_path / "train.csv", [*train, train[0]])
    write(tmp_path / "val.csv", rows(6, 900))
    write(tmp_path / "test.csv", [(train[3][0], "  " + train[3][1].upper()), *rows(8, 7000)])
    facts = Text(str(tmp_path)).build().facts["splits"]
    assert [facts[name]["duplicates"] for name in ("train", "validation", "test")] == [1, 0, 1]


def test_columns_go_by_the_names_that_are_given(tmp_path):
    lines = [(text, "headline", label) for label, text in rows(60, 1)]
    write(tmp_path / "train.csv", lines, ("body", "title", "topic"))
    task = Text(str(tmp_path), text=("title", "body"), label="topic").build()
    assert all(text.startswith("headline ") for text in task.train.texts)
    assert task.classes == tuple(sorted(CLUES))


def test_the_official_files_have_no_header(tmp_path):
    number = {name: str(n + 1) for n, name in enumerate(CLUES)}
    for name, count, seed in (("train", 60, 1), ("test", 9, 500)):
        lines = [(number[label], "A title", text) for label, text in rows(count, seed)]
        write(tmp_path / f"{name}.csv", lines, header=())
    assert Text(str(tmp_path)).build().classes == ("1", "2", "3")
    (tmp_path / "classes.txt").write_text("\n".join(CLUES) + "\n")
    task = Text(str(tmp_path)).build()
    assert task.classes == tuple(sorted(CLUES))
    assert len(task.train) + len(task.validation) == 60  # the first line is a row, too
    assert all(text.startswith("A title ") for text in task.test.texts)
    (tmp_path / "classes.txt").write_text("one\ntwo\n")
    with pytest.raises(ValueError, match="names 2 classes, and there is a '3'"):
        Text(str(tmp_path)).build()


def test_class_names_may_be_counted_from_nought(tmp_path):
    number = {name: str(n) for n, name in enumerate(CLUES)}
    write(tmp_path / "train.csv", [(number[label], text) for label, text in rows(60, 1)])
    (tmp_path / "classes.txt").write_text("\ufeff" + "\n".join(CLUES), encoding="utf-8")
    source = read_source(str(tmp_path), ["text"], "label")
    assert [(row.label, row.text) for row in source.train.rows] == rows(60, 1)


def test_labels_that_may_count_from_0_or_from_1_are_refused(tmp_path):
    """With three names, 1 and 2 are the last two counted from 0 and the first two from 1."""
    lines = [(str(1 + n % 2), text) for n, (_, text) in enumerate(rows(60, 1))]
    write(tmp_path / "train.csv", lines)
    (tmp_path / "classes.txt").write_text("\n".join(CLUES))
    with pytest.raises(ValueError, match="labels from 1 to 2, which may be counted from 0 or from"):
        read_source(str(tmp_path), ["text"], "label")
    (tmp_path / "classes.txt").write_text("\n".join(list(CLUES)[:2]))
    source = read_source(str(tmp_path), ["text"], "label")
    assert [row.label for row in source.train.rows[:2]] == list(CLUES)[:2]


def test_some_rows_keep_their_texts_and_their_width(task):
    rows = torch.tensor([5, 2])
    some = task.train.take(rows)
    assert some.texts == (task.train.texts[5], task.train.texts[2])
    assert torch.equal(some.labels, task.train.labels[rows])
    for name, values in task.train.inputs.items():
        assert torch.equal(some.inputs[name], values[rows])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_a_batch_holds_every_real_token_wherever_it_stands(dtype):
    ids = torch.tensor([[0, 0, 0, 5, 6, 7], [8, 9, 0, 0, 0, 0], [3, 0, 4, 0, 0, 0]])
    split = Split({"input_ids": ids, "attention_mask": (ids > 0).to(dtype)}, torch.arange(3))
    assert split.lengths.tolist() == [6, 2, 3]
    for row, width in ((0, 6), (1, 2), (2, 3)):
        assert torch.equal(split.batch(torch.tensor([row]))[0]["input_ids"][0], ids[row, :width])


def test_a_row_without_a_real_token_is_named():
    mask = torch.tensor([[True, False], [False, False], [False, False]])
    split = Split({"input_ids": mask.long(), "attention_mask": mask}, torch.zeros(3))
    with pytest.raises(ValueError, match="row 1 has no real token"):
        split.batch(torch.tensor([0]))


def test_batches_are_as_wide_as_their_longest_row_and_hold_every_row_once(task):
    seen, tokens = [], 0
    for inputs, labels in task.train.batches(7):
        assert inputs["input_ids"].shape == inputs["attention_mask"].shape
        assert inputs["attention_mask"].any(dim=0).all()  # no column of padding alone
        seen += labels.tolist()
        tokens += int(inputs["attention_mask"].sum())
    assert sorted(seen) == sorted(task.train.labels.tolist())
    assert tokens == int(task.train.inputs["attention_mask"].sum())
    widths = [inputs["input_ids"].shape[1] for inputs, _ in task.train.batches(7)]
    assert widths == sorted(widths) and widths[0] < widths[-1]
    padded = [inputs["input_ids"].shape[1] for inputs, _ in task.train.batches(7, padded=True)]
    assert set(padded) == {12}


def test_only_rows_with_the_digest_are_taken(data, tmp_path):
    digest = read_source(str(data), ["text"], "label").digest()
    spec = Text("a name", digest=digest, folder=str(data))
    assert len(spec.build().test) == 30
    assert spec.identity() == replace(spec, data="another", folder=None).identity()
    with pytest.raises(ValueError, match=f"digest is {digest}, not 0000"):
        replace(spec, digest="0000").build()


def test_words_are_lower_case_and_punctuation_stands_alone():
    words = Tokenizer.learn(["The cat, the dog.", "THE cat!"], length=4, size=100, min_count=2)
    assert len(words) == 4  # [PAD], [UNK], the, cat
    the, cat = words.encode(["the cat"])[0]
    assert words.encode(["The CAT dog the cat", " ", ""]) == [
        [the, cat, words.unknown, the],
        [words.unknown],
        [words.unknown],
    ]
    again = Tokenizer.from_json(words.to_json())
    assert again.encode(["the cat dog"]) == words.encode(["the cat dog"])
    assert again.length == 4
    with pytest.raises(ValueError, match="not a tokenizer"):
        Tokenizer.from_json("{}")


def test_padding_is_masked():
    words = Tokenizer.learn(["a b"], length=4, size=9, min_count=1)
    inputs = words.pad([[5, 6, 7], [8]])
    assert inputs["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[True] * 3, [True, False, False]]
    assert words.pad([[5]], 4)["input_ids"].shape == (1, 4)


GOOD = [("sport", "a match"), ("money", "a bank")] * 10
BAD = {
    "no column": (
        [("x", "y")],
        ("topic", "text"),
        r"train.csv, line 1: there is no column 'label'",
    ),
    "empty text": (
        [*GOOD, ("sport", " ")],
        ("label", "text"),
        r"train.csv, line 22: the text is empty",
    ),
    "empty label": (
        [*GOOD, ("", "x")],
        ("label", "text"),
        r"train.csv, line 22: the label is empty",
    ),
    "one class": (
        [("sport", "a b")] * 9,
        ("label", "text"),
        r"train.csv, line 2: every row is of class",
    ),
    "a comma": ([*GOOD, ("a", "b", "c")], ("label", "text"), r"line 22: 3 fields in place of 2"),
    "a field less": ([*GOOD, ("a",)], ("label", "text"), r"line 22: 1 fields in place of 2"),
    "a million characters": (
        [*GOOD, ("sport", "x" * 1_000_000)],
        ("label", "text"),
        r"train.csv, line 22: a text of more than 131,072 characters",
    ),
    "header only": ([], ("label", "text"), r"train.csv has no rows"),
    "several": (
        [("sport", ""), *GOOD, ("sport", "")],
        ("label", "text"),
        r"line 2: .* \(1 more row",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_with_its_file_and_line(tmp_path, case):
    lines, header, says = BAD[case]
    write(tmp_path / "train.csv", lines, header)
    with pytest.raises(ValueError, match=says):
        Text(str(tmp_path)).build()


def test_an_empty_file_and_one_that_is_not_utf8_are_named(tmp_path):
    (tmp_path / "train.csv").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train.csv is empty"):
        Text(str(tmp_path)).build()
    (tmp_path / "train.csv").write_bytes(b"label,text\na,fine\nb,caf\xe9\n")
    with pytest.raises(ValueError, match=r"train.csv, line 3: not UTF-8"):
        Text(str(tmp_path)).build()


def test_lines_are_counted_as_an_editor_does(tmp_path):
    """A quoted text may go over several lines; a row is where it starts."""
    (tmp_path / "train.csv").write_text('label,text\na,"two\nlines"\n\nb,\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"train.csv, line 5: the text is empty"):
        Text(str(tmp_path)).build()


def slowly(text: str) -> list[tuple[int, object]]:
    """Records as they are defined: where one is broken, its first line is lost, all others not."""
    lines = text.splitlines(keepends=True)
    found: list[tuple[int, object]] = []
    start = 0
    while start < len(lines):
        reader = csv.reader(lines[start:], strict=True)
        try:
            fields: object = next(reader)
        except csv.Error:
            fields = None
        if fields != []:
            found.append((start + 1, fields))
        start += 1 if fields is None else reader.line_num
    return found


@given(st.text(alphabet='",\na', max_size=40))
def test_broken_records_lose_their_first_line_and_no_other(text):
    found = [
        (line, None if isinstance(fields, BadRow) else fields)
        for line, fields in _records(text.splitlines(keepends=True))
    ]
    assert found == slowly(text)


def test_no_line_is_read_more_than_three_times(monkeypatch):
    """Each line opens a quote, and stays inside one if it begins there."""
    taken, reader = 0, csv.reader

    def counting(lines, **options):
        def counted():
            nonlocal taken
            for line in lines:
                taken += 1
                yield line

        return reader(counted(), **options)

    monkeypatch.setattr("apportion.data.rows.csv.reader", counting)
    assert len(list(_records(["label,text\n", *['a""","\n'] * 1000]))) == 1001
    assert taken < 3 * 1001


def test_a_record_without_end_is_not_read_to_its_end():
    found = _records(iter(['x","y\n', *[f'{"x" * 99_999}","y\n'] * 1000, "fine\n"]))
    line, first = next(found)
    assert line == 1 and "is a quote left open?" in first.problem


def test_columns_that_can_not_be_told_apart_and_nul_bytes_are_named(tmp_path):
    (tmp_path / "train.csv").write_text("label,text,text\na,b,c\n")
    with pytest.raises(ValueError, match=r"train.csv, line 1: there are two columns 'text'"):
        Text(str(tmp_path)).build()
    (tmp_path / "train.csv").write_bytes(b"label,text\na,b\0c\n")
    with pytest.raises(ValueError, match=r"train.csv, line 2: a NUL byte, which no text has"):
        Text(str(tmp_path)).build()


def test_a_quote_that_is_left_open_is_named_and_swallows_nothing():
    lines = ["text\n", "fine\n", '"open\n', "also fine\n", '"over\n', 'two lines"\n', "x\n"]
    found = list(read_csv(lines, "in.csv", ["text"], None))
    assert [(row.line, getattr(row, "text", None)) for row in found] == [
        (2, "fine"),
        (3, None),  # which took the line below with it, and the quote of the fifth
        (4, "also fine"),
        (5, "over\ntwo lines"),
        (7, "x"),
    ]
    found = list(read_csv(["text\n", '"never closed\n', "b\n", "c\n"], "in.csv", ["text"], None))
    assert [(row.line, getattr(row, "text", None)) for row in found] == [
        (2, None),
        (3, "b"),
        (4, "c"),
    ]
    assert "a quote is left open" in found[0].problem


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfel\x00a\x00b\x00", "line 1: not UTF-8"),
        (b"\n\n", "is empty"),
        (
            b"\nlabel,body\na,b\n",
            "line 2: there is no column 'text'; the columns are 'label', 'body'",
        ),
        (b"x" * 99 + b"\n", "the columns are 'x{39}…'"),
    ],
)
def test_a_first_line_that_is_no_header_is_named(tmp_path, content, says):
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        Text(str(tmp_path)).build()


def test_files_of_other_systems_are_read(tmp_path):
    """A byte-order mark, and lines that end in carriage return and line feed."""
    lines = "".join(f"{label},{text}\r\n" for label, text in rows(60, 1))
    content = b"\xef\xbb\xbflabel,text\r\n" + lines.encode()
    (tmp_path / "train.csv").write_bytes(content)
    assert Text(str(tmp_path)).build().classes == tuple(sorted(CLUES))


def test_a_label_that_training_never_saw_is_named(tmp_path):
    write(tmp_path / "train.csv", GOOD)
    write(tmp_path / "test.csv", [*GOOD[:4], ("weather", "rain")])
    with pytest.raises(
        ValueError, match=r"test.csv, line 6: no training row is of class 'weather'"
    ):
        Text(str(tmp_path)).build()


def test_more_rows_than_there_are_can_not_be_had(data, tmp_path):
    with pytest.raises(ValueError, match=r"train.csv: 1,000 train rows were asked for, 108 are"):
        Text(str(data), train=1000).build()
    with pytest.raises(ValueError, match=r"has no train.csv"):
        Text(str(tmp_path)).build()
    with pytest.raises(ValueError, match=r"is a file; give the folder"):
        Text(str(data / "train.csv")).build()


def test_a_class_with_one_row_is_trained_on(tmp_path):
    write(tmp_path / "train.csv", [*GOOD, ("rare", "once"), ("rarer", "never")])
    for seed in range(5):
        task = Text(str(tmp_path), train=4, validation=4, test=4, seed=seed).build()
        assert len(set(task.train.labels.tolist())) == 4
        assert [len(split) for split in (task.train, task.validation, task.test)] == [4, 4, 4]


def test_a_class_that_is_too_rare_to_be_trained_on_is_named(tmp_path):
    write(tmp_path / "train.csv", [*GOOD, ("rare", "once"), ("rarer", "never")])
    with pytest.raises(ValueError, match=r"class '\w+' has too few rows"):
        Text(str(tmp_path), train=3, validation=4, test=4).build()


def test_validation_rows_may_be_those_of_the_test_file_that_are_not_measured_on(tmp_path):
    write(tmp_path / "train.csv", GOOD)
    again = [(label, f"{text} {place} again") for place, (label, text) in enumerate(GOOD)]
    write(tmp_path / "test.csv", again)
    spec = Text(str(tmp_path), test=4, validation=4, validation_from="test")
    task = spec.build()
    assert len(task.train) == len(GOOD), "no training row is held out"
    assert not set(task.validation.texts) & set(task.test.texts)
    assert all(text.endswith("again") for text in task.validation.texts)
    assert spec.identity() != replace(spec, validation_from=None).identity()
    write(tmp_path / "val.csv", GOOD)
    with pytest.raises(ValueError, match="is for test rows without validation rows"):
        spec.build()
    with pytest.raises(ValueError, match="validation_from is 'test' or not set, not 'train'"):
        replace(spec, validation_from="train")


@pytest.mark.parametrize("numbers", [{"length": 0}, {"train": 1}, {"text": ()}, {"min_count": 0}])
def test_numbers_that_make_no_task_are_refused(numbers):
    with pytest.raises(ValueError, match="at least"):
        Text("x", **numbers)


def test_a_name_without_a_network_says_what_to_do(monkeypatch, tmp_path):
    says = r"no folder 'nobody/nothing'.*without a network give"

    def unreachable(*args, **kwargs):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    with pytest.raises(ValueError, match=says):
        Text("nobody/nothing").build()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(ValueError, match=says):
        Text("nobody/nothing").build()


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere", "~/nowhere", "a/b/c", "a folder/b"])
def test_a_path_that_leads_nowhere_is_not_asked_of_the_hub(path, monkeypatch):
    monkeypatch.setattr("apportion.data.sources.read_hub", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ValueError, match="there is no folder"):
        Text(path).build()


def test_a_dataset_of_the_hub_is_read_by_its_columns_and_class_names(tmp_path, monkeypatch):
    """The library's own reader on parquet files of the kind that the hub serves."""
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    names = sorted(CLUES)
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)}
    )
    home = tmp_path / "repository"
    home.mkdir()
    for split, count in (("train", 60), ("test", 9)):
        made = rows(count, count)
        columns = {"text": [t for _, t in made], "label": [names.index(label) for label, _ in made]}
        datasets.Dataset.from_dict(columns, features).to_parquet(home / f"{split}.parquet")
    source = read_hub(str(home), ["text"], "label")
    assert [row.label for row in source.train.rows[:3]] == list(CLUES)
    assert source.validation is None and len(source.test.rows) == 9
    with pytest.raises(ValueError, match=r"no column 'body'; its columns are 'text', 'label'"):
        read_hub(str(home), ["body"], "label")


def test_labels_that_the_hub_keeps_secret_are_no_split(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    home = tmp_path / "repository"
    home.mkdir()
    for split, labels in (("train", [0, 1] * 9), ("test", [-1] * 4)):
        columns = {"text": ["some text"] * len(labels), "label": labels}
        datasets.Dataset.from_dict(columns).to_parquet(home / f"{split}.parquet")
    source = read_hub(str(home), ["text"], "label")
    assert source.test is None and {row.label for row in source.train.rows} == {"0", "1"}


@pytest.mark.skipif(not AG_NEWS.exists(), reason="the shared copy of AG News is not here")
def test_real_texts_are_read_whole():
    source = read_source(str(AG_NEWS), ["text"], "label")
    assert (len(source.train.rows), len(source.test.rows)) == (13_423, 7_600)
    task = Text(str(AG_NEWS), train=1000, validation=200, test=200).build()
    assert task.classes == ("Business", "Sci/Tech", "Sports", "World")
    assert task.facts["splits"]["test"]["duplicates"] == 0
    assert torch.equal(task.test.labels.bincount(), torch.full((4,), 50))


def test_a_seed_below_zero_is_refused():
    with pytest.raises(ValueError, match="seed of the rows must be 0 or more, not -1"):
        Text("here", seed=-1)


def test_pairs_of_texts_are_refused_unless_both_columns_are_named():
    lines = ["label,text,text_pair\n", "a,one,two\n"]
    with pytest.raises(ValueError, match=r"pairs of texts .* --text text --text text_pair"):
        list(read_csv(lines, "train.csv", ("text",), "label"))
    (row,) = read_csv(lines, "train.csv", ("text", "text_pair"), "label")
    assert row.text == "one two"
