from __future__ import annotations

import json

import pytest

from apportion import records


def test_records_are_appended_and_read_back(tmp_path):
    path = tmp_path / "results" / "a.jsonl"
    records.append(path, {"n": 1})
    records.append(path, {"n": 2}, {"n": 3})
    assert [r["n"] for r in records.read(path)] == [1, 2, 3]


def test_half_a_line_loses_only_itself(tmp_path):
    """A kill in the middle of an append."""
    path = tmp_path / "a.jsonl"
    records.append(path, {"n": 1})
    with path.open("a") as file:
        file.write('{"n": 2, "accu')
    assert [r["n"] for r in records.read(path)] == [1]
    records.append(path, {"n": 3})
    assert [r["n"] for r in records.read(path)] == [1, 3]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    records.write_text(path, "good")
    with pytest.raises(RuntimeError), records.replacing(path) as part:
        part.write_text("ba")
        raise RuntimeError("killed")
    assert path.read_text() == "good"
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_says_where_it_came_from_but_not_who_ran_it(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somebody/apportion", "run", "/somebody/x.toml", "-j"])
    found = records.provenance(threads=1)
    assert found["command"] == "apportion run x.toml -j"
    assert {"time", "python", "versions", "machine", "threads"} <= set(found)
    assert "somebody" not in json.dumps(found)
