from __future__ import annotations

import json
import math

import pytest

from apportion.study import records
from apportion.study.report.query import of_medians


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


def test_a_number_that_is_none_is_not_recorded(tmp_path):
    """NaN is no JSON: nothing else could read the file."""
    path = tmp_path / "a.jsonl"
    records.append(path, {"n": 1})
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON"):
            records.append(path, {"n": number})
    assert path.read_text() == '{"n": 1}\n'


def test_a_record_says_where_it_came_from_but_not_who_ran_it(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somebody/apportion", "run", "/somebody/x.toml", "-j"])
    found = records.provenance(threads=1)
    assert found["command"] == "apportion run x.toml -j"
    assert {"time", "python", "versions", "machine", "threads"} <= set(found)
    assert "somebody" not in json.dumps(found)


def test_older_records_have_the_ratio_of_medians_from_their_dense_model():
    """Both times were taken in one run; where the dense model's is missing, nothing is made up."""
    run = {"kind": "latency", "stage": "a", "protocol": "padded", "batch": 8}
    dense = {**run, "form": "dense", "budget": 1.0, "median_ms": 30.0}
    other = {**dense, "protocol": "single", "median_ms": 90.0}
    view = {**run, "form": "skip", "budget": 0.5, "median_ms": 20.0}
    assert of_medians([view], [dense, other, view]) == "1.50x"
    assert of_medians([{**view, "of_medians": 1.25}], [dense, view]) == "1.25x"
    assert of_medians([view], [other, view]) == "–"
