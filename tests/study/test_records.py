from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from conftest import TINY
from record_tables import PAGE, page
from witnesses import ToldApart

from apportion.elastic.elastic import Elastic
from apportion.elastic.repairing import repair
from apportion.elastic.scoring import SOURCES, Scored
from apportion.study import records
from apportion.study.measuring import run_stage
from apportion.study.report.query import of_medians
from apportion.study.stages import ScoredStage


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


NAMES = {"stage": "0123", "method": "a", "data_seed": 1, "seed": 7, "only": None}
RESULTS = sorted((Path(__file__).parents[2] / "experiments" / "results").glob("*.jsonl"))


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_every_record_of_the_studies_is_a_value_of_its_kind(file):
    """Older ones, too; and a value is written as its line stands."""
    for line in records.read(file):
        assert records.record_of(line).to_dict() == line


def test_a_record_of_no_kind_or_with_a_foreign_field_is_refused():
    known = {**NAMES, "kind": "monotone", "monotone": True}
    assert records.record_of(known) == records.MonotoneRecord(**NAMES, monotone=True)
    for change, says in [
        ({"kind": "mood"}, "a record is of stage, point, .*, not of 'mood'"),
        ({"mood": 1}, "a record of monotone has unknown keys mood"),
        ({"monotone": "yes"}, "monotone must be true or false, not 'yes'"),
    ]:
        with pytest.raises(ValueError, match=says):
            records.record_of({**known, **change})
    with pytest.raises(ValueError, match="a record of monotone needs monotone, seed"):
        records.record_of({k: v for k, v in known.items() if k not in ("seed", "monotone")})


def test_null_is_written_and_what_a_record_does_not_have_is_not():
    found = records.ScoresRecord(**NAMES, scores=[0.5], repair_weighting=None).to_dict()
    assert found == {**NAMES, "kind": "scores", "scores": [0.5], "repair_weighting": None}


def test_whatever_scoring_and_repair_say_has_a_field_in_the_record(task, encoder):
    model = Elastic(encoder, ("heads", "feedforward"), length=task.length, block=16)
    provenance = records.provenance(threads=1)
    said = set()
    for source in SOURCES.values():
        said |= set(source(model, task, 7, model, None).facts)
    said |= set(repair(model.nested(), task.train, held_out=task.validation, rows=8)[1])
    assert {"passes", "rows", "repair_share"} <= said
    assert said - set(provenance) <= {field.name for field in fields(records.ScoresRecord)}


def test_a_fact_without_a_field_is_an_error_and_not_dropped(tmp_path, monkeypatch):
    def surprising(model, *_):
        return Scored(torch.rand(len(model.units)), {"surprise": 1})

    monkeypatch.setitem(SOURCES, "random", surprising)
    cell = {"method": "scored", "task": ToldApart(), "model": TINY, "seed": 3, "budgets": (0.5,)}
    scored = ScoredStage(**cell, score="random")
    with pytest.raises(TypeError, match="unexpected keyword argument 'surprise'"):
        run_stage(scored, tmp_path)


def test_the_page_of_records_is_the_one_that_the_dataclasses_give():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
