"""What the server has to reach: the tool that measures it, its records and its tables."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import serving_chaos
import serving_goals
from small_export import write_export
from texts import folder as write_data
from texts import rows
from written_forecast import write_forecast

from apportion.study import records
from apportion.study.report.serving_tables import serving_tables


def load_line(arm, turn, met, right, load=0.32, of="small", void=False, mixed=True):
    counts = {"sent": 100, "met": met, "attainment": met / 100, "refused": 0, "lost": 0}
    counts |= {"failed": 0, "twice": 0, "right_rows": right, "answered_rows": 100, "void": void}
    where = {"kind": "load", "subject": "x", "arm": arm, "turn": turn, "load": load, "of": of}
    return {**where, "mixed": mixed, "results": counts}


def table(lines, name):
    (found,) = [one for one in serving_tables(lines) if one.name == name]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def test_without_records_every_table_says_so():
    assert all(one.rows == (("no record yet",),) for one in serving_tables([]))


def test_overload_counts_violations_on_the_same_arrivals_and_leaves_void_turns_out():
    lines = []
    for turn, (met, full) in enumerate([(99, 20), (98, 30), (97, 40)]):
        lines += [load_line("ladder", turn, met, 90), load_line("static-full", turn, full, 94)]
    lines.append(load_line("ladder", 3, 0, 0, void=True))
    ladder, full = table(lines, "overload")
    assert (ladder["arm"], ladder["turns"], full["arm"]) == ("ladder", "3", "static-full")
    assert ladder["in time"].startswith("98.00 %") and ladder["lost"] == "0"
    ratio = ladder["violations, static-full over this"]
    assert ratio.startswith("35.0x (20.0x – 80.0x)")
    assert full["violations, static-full over this"] == "–"


def test_a_turn_that_was_measured_twice_counts_once():
    lines = [load_line("ladder", 0, 10, 90), load_line("ladder", 0, 99, 90)]
    (row,) = table(lines, "overload")
    assert row["turns"] == "1" and row["in time"] == "99.00 %"


def test_accuracy_is_paired_by_turn_and_shown_as_a_share_of_the_span():
    lines = []
    for turn in range(3):
        for arm, right in (("static-0.125", 86 + turn), ("static-1", 94), ("ladder", 92 + turn)):
            lines.append(load_line(arm, turn, 99, right, 1.2, "whole", mixed=False))
    ladder, small, whole = table(lines, "accuracy")
    assert ladder["right"] == "93.00 %" and ladder["span"] == "86 %"
    assert small["ladder's less this, points"].startswith("+6.00")
    assert whole["ladder's less this, points"].startswith("-1.00 (-3.48 – +1.48)")


def test_another_server_is_compared_turn_by_turn_and_apart_from_overload():
    lines = []
    for turn, (alone, on_ray) in enumerate([(100, 90), (80, 80), (90, 88)]):
        for arm, met in (("ladder", alone), ("ray-serve", on_ray)):
            lines.append(load_line(arm, turn, met, 90, 1.2, "whole"))
    alone, on_ray = table(lines, "ray-serve")
    assert alone["of the server alone"].startswith("1.000")
    assert on_ray["of the server alone"].startswith("0.978 (0.900 – 1.000)")
    assert table(lines, "accuracy") == [{"": "no record yet"}]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("goals")
    folder = write_export(home)
    write_forecast(folder, each=1.0)
    return folder, write_data(home / "data", train=3, test=60)


def run(small, out, *words):
    folder, data = small
    given = [str(folder), str(data), "--scale", "0.0002", "--seconds", "1", "--out", str(out)]
    return serving_goals.main([*given, *words])


def test_fuzzed_requests_are_recorded_once(small, tmp_path, capsys):
    out = tmp_path / "serving.jsonl"
    for _ in range(2):
        run(small, out, "--parts", "fuzz")
    (line,) = records.read(out)
    assert records.record_of(line).requests == 20 and line["wrong"] == 0
    assert sum(line["statuses"].values()) == 20
    assert table([line], "fuzz")[0]["requests"] == "20"


@pytest.mark.slow
def test_chaos_loses_nothing_and_a_wrong_label_would_be_seen(small, tmp_path, monkeypatch):
    folder, _ = small
    texts = [text for _, text in rows(60, 5000)]
    monkeypatch.setattr(serving_chaos, "_SURE", 0.02)
    fields = asyncio.run(serving_chaos.chaos(folder, texts, rows=4000, deaths=2, swaps=1, seed=3))
    assert (fields["lost"], fields["failed"], fields["twice"], fields["wrong"]) == (0, 0, 0, 0)
    assert fields["swaps"] == 1 and fields["deaths"] >= 1 and fields["code"] == 0
    assert fields["left"] > 10 and fields["answered"] > 100
    known = serving_chaos.know(folder, texts, 20)
    assert len(known.texts) == 20 and {len(one) for one in known.labels.values()} == {20}


@pytest.mark.slow
def test_work_for_clients_that_left_is_counted_and_the_others_are_answered(
    small, tmp_path, monkeypatch
):
    monkeypatch.setattr(serving_chaos, "_SURE", 0.0)
    out = tmp_path / "serving.jsonl"
    run(small, out, "--parts", "abandoned")
    (line,) = records.read(out)
    made = records.record_of(line)
    assert made.answered == [1.0, 1.0, 1.0] and 0 < made.left < made.requests
    assert 0.0 <= made.wasted_s < made.spent_s
    (row,) = table([line], "abandoned")
    assert row["left"] == f"{made.left} of {made.requests}"


@pytest.mark.slow
def test_targets_and_ends_are_recorded_and_shown(small, tmp_path):
    out = tmp_path / "serving.jsonl"
    run(small, out, "--parts", "targets", "drain")
    lines = records.read(out)
    for line in lines:
        records.record_of(line)
    assert sum(line["kind"] == "target" for line in lines) == 48
    (ended,) = [line for line in lines if line["kind"] == "drain"]
    # The model is too small to keep anybody waiting: whether all are answered says nothing of it.
    assert 0 < ended["answered"] <= ended["rows"] and ended["code"] == 0
    (row,) = table(lines, "drain")
    assert row["ends with all answered"] == str(int(ended["answered"] == ended["rows"]))
    assert json.dumps(lines)
