"""Files of texts for batch jobs: found by name, folder or pattern, counted, read alike."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from texts import rows, write

from apportion.data.rows import BadRow, Row
from apportion.data.shards import Columns, MarkedRow, find_shards, read_shard

MADE = rows(30, 4)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "b.csv", [(str(n), t) for n, (_, t) in enumerate(MADE[:20])], ("id", "text"))
    table = pa.table({"id": list(range(20, 30)), "text": [text for _, text in MADE[20:]]})
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=4)
    (tmp_path / "a.txt").write_text("not read: neither CSV nor Parquet\n")
    (tmp_path / ".hidden.csv").write_text("text\nnot read either\n")
    return tmp_path


def test_a_folder_is_its_csv_and_parquet_files_in_the_order_of_their_names(folder):
    shards = find_shards(folder, Columns(("text",), "id"))
    assert [(s.path.name, s.kind, s.rows) for s in shards] == [
        ("b.csv", "csv", 20),
        ("c.parquet", "parquet", 10),
    ]
    read = [row for shard in shards for row in read_shard(shard, Columns(("text",), "id"))]
    assert [(row.text, row.id) for row in read] == [
        (text, str(n)) for n, (_, text) in enumerate(MADE)
    ]
    assert [row.line for row in read] == [*range(2, 22), *range(1, 11)]


def test_a_pattern_finds_the_same_files_and_a_name_finds_one(folder):
    named = find_shards(folder / "*.csv", Columns())
    assert named == find_shards(folder / "b.csv", Columns())
    assert len(find_shards(folder / "*", Columns())) == 3  # a file of lines is asked for by name


def test_the_same_texts_have_the_same_digest_wherever_they_lie(folder, tmp_path):
    one = find_shards(folder / "b.csv", Columns())[0]
    (tmp_path / "copy.csv").write_bytes((folder / "b.csv").read_bytes())
    assert find_shards(tmp_path / "copy.csv", Columns())[0].digest == one.digest


def test_rows_of_parquet_are_judged_as_those_of_csv(tmp_path):
    texts = ["fine", None, " ", "a\0b", "also fine"]
    pq.write_table(pa.table({"text": texts, "n": [1, 2, 3, 4, None]}), tmp_path / "x.parquet")
    shard = find_shards(tmp_path / "x.parquet", Columns())[0]
    found = list(read_shard(shard, Columns()))
    assert [isinstance(row, Row) for row in found] == [True, False, False, False, True]
    assert shard.rows == 5
    last = list(read_shard(shard, Columns(("text",), "n")))[-1]
    assert last == MarkedRow(5, "also fine")  # a text without an id is a text


@pytest.mark.parametrize(
    "name, columns, says",
    [
        ("none.csv", Columns(), "there is no file"),
        ("*.tsv", Columns(), "no file matches"),
        ("empty", Columns(), "no CSV or Parquet file in"),
        ("c.parquet", Columns(("body",)), "no column 'body'; the columns are 'id', 'text'"),
        ("c.parquet", Columns(("id",)), "column 'id' holds int64, not text"),
        ("c.parquet", Columns(("text",), "key"), "no column 'key'"),
        ("b.csv", Columns(("body",)), "no column 'body'"),
        ("b.csv", Columns(("text",), "key"), "no column 'key'; the columns are 'id', 'text'"),
        ("a.txt", Columns(("text",), "id"), "has a text per line, and no 'id'"),
    ],
)
def test_bad_input_is_named_before_anything_starts(folder, name, columns, says):
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=says):
        find_shards(folder / name, columns)


def test_a_file_that_is_no_parquet_is_one_sentence(tmp_path):
    (tmp_path / "x.parquet").write_text("text\nhello\n")
    with pytest.raises(ValueError, match=r"x.parquet is not readable as Parquet"):
        find_shards(tmp_path / "x.parquet", Columns())


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_row_may_have_an_id_and_a_tag(tmp_path, suffix):
    lines = [("7", "law", "a text"), ("8", "", "another"), ("9", "chat", ""), ("", "law", "last")]
    if suffix == "csv":
        write(tmp_path / "x.csv", lines, ("key", "kind", "text"))
    else:
        keys, kinds, texts = zip(*lines, strict=True)
        table = pa.table({"key": keys, "kind": kinds, "text": texts})
        pq.write_table(table, tmp_path / "x.parquet")
    columns = Columns(("text",), "key", "kind")
    shard = find_shards(tmp_path / f"x.{suffix}", columns)[0]
    found = list(read_shard(shard, columns))
    assert (found[0].id, found[0].tag, found[0].text) == ("7", "law", "a text")
    assert (found[1].id, found[1].tag) == ("8", "")  # a tag may be empty: there may be a default
    assert found[2] == BadRow(4 if suffix == "csv" else 3, "the text is empty")
    assert (found[3].id, found[3].tag) == (None, "law")
