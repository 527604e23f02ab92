"""Forecasts: a table of milliseconds, what it says between its points, and where it is refused."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.serving.milliseconds.forecast import Deadline, Forecast, fingerprint_of, forecast_of
from apportion.serving.milliseconds.machine import processor

IDENTITY = {"weights": "ab", "tokenizer": "cd", "runtime": "a 1", "precision": "int8"}
LEVELS, LENGTHS, ROWS = (0.25, 0.5, 1.0), (8, 32, 64), (1, 4, 16)
TABLE = tuple(
    tuple(tuple(level * (1.0 + 0.1 * length * rows) for rows in ROWS) for length in LENGTHS)
    for level in LEVELS
)
FORECAST = Forecast(LEVELS, LENGTHS, ROWS, TABLE, 0.1, fingerprint_of(IDENTITY, 1))
counts = st.integers(1, 80)
times = st.floats(0.01, 1e4)


@pytest.mark.parametrize("level", LEVELS)
def test_a_point_of_the_table_is_foretold_as_it_was_measured(level):
    for length in LENGTHS:
        for rows in ROWS:
            said = FORECAST.milliseconds(rows=rows, length=length, level=level)
            assert said == pytest.approx(level * (1.0 + 0.1 * length * rows))


def test_between_two_points_and_above_the_last_one_time_is_a_straight_line():
    """The table is of a law that is straight in each: it is met wherever it goes on."""
    for rows, length in [(2, 20), (10, 50), (16, 100), (40, 64), (40, 100)]:
        said = FORECAST.milliseconds(rows=rows, length=length, level=0.5)
        assert said == pytest.approx(0.5 * (1.0 + 0.1 * length * rows))


def test_below_the_shortest_length_time_is_that_of_the_shortest():
    shortest = FORECAST.milliseconds(rows=4, length=8, level=1.0)
    assert FORECAST.milliseconds(rows=4, length=1, level=1.0) == shortest


@given(rows=counts, length=counts, more=counts)
def test_more_rows_tokens_or_level_never_take_less_time(rows, length, more):
    least = FORECAST.milliseconds(rows=rows, length=length, level=0.5)
    assert FORECAST.milliseconds(rows=rows + more, length=length, level=0.5) >= least
    assert FORECAST.milliseconds(rows=rows, length=length + more, level=0.5) >= least
    assert FORECAST.milliseconds(rows=rows, length=length, level=1.0) >= least


@given(ms=times, more=times, rows=counts, length=counts)
def test_the_highest_level_that_fits_is_taken_and_more_time_never_lowers_it(ms, more, rows, length):
    found = FORECAST.level_within(ms, rows=rows, length=length)
    needs = {
        level: 1.1 * FORECAST.milliseconds(rows=rows, length=length, level=level)
        for level in LEVELS
    }
    fitting = [level for level in LEVELS if needs[level] <= ms]
    assert found == (fitting[-1] if fitting else None)
    assert (FORECAST.level_within(ms + more, rows=rows, length=length) or 0) >= (found or 0)


def test_a_budget_is_a_ceiling_and_calls_add_up():
    assert FORECAST.level_within(1e6, rows=1, length=8, budget=0.6) == 0.5
    one = 1.1 * FORECAST.milliseconds(rows=4, length=32, level=1.0)
    assert FORECAST.level_of_calls(2.01 * one, [(4, 32)] * 2) == 1.0
    assert FORECAST.level_of_calls(1.99 * one, [(4, 32)] * 2) == 0.5
    assert FORECAST.level_of_calls(5.0, []) == 1.0


def test_a_forecast_is_read_as_it_was_written(tmp_path):
    FORECAST.write(tmp_path / "forecast.json")
    assert Forecast.read(tmp_path / "forecast.json") == FORECAST
    assert [path.name for path in tmp_path.iterdir()] == ["forecast.json"]


@pytest.mark.parametrize("ms", [0, -5.0, float("nan"), float("inf"), True, "5"])
def test_milliseconds_are_a_number_above_zero(ms):
    with pytest.raises(ValueError, match="milliseconds are a number above 0, not"):
        FORECAST.level_within(ms, rows=1, length=8)
    with pytest.raises(ValueError, match="milliseconds are a number above 0, not"):
        Deadline(FORECAST, ms)


def test_an_empty_call_and_an_unknown_level_are_refused():
    with pytest.raises(ValueError, match="a row and a token at least, not 0 x 8"):
        FORECAST.milliseconds(rows=0, length=8, level=1.0)
    with pytest.raises(ValueError, match=r"of levels 0\.25, 0\.5, 1, not of 0\.3"):
        FORECAST.milliseconds(rows=1, length=8, level=0.3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "apportion-export"}, "not a forecast"),
        ({"version": 2}, "not a forecast"),
        ({"mood": 1}, "mood are missing or unknown"),
        ({"levels": [0.5, 0.25, 1.0]}, "rising numbers"),
        ({"lengths": [8, 32, "64"]}, "rising numbers"),
        ({"rows": []}, "rising numbers"),
        ({"table": [[[1.0]]]}, "its table has other sizes"),
        ({"table": [[[0.0] * 3] * 3] * 3}, "times that are none"),
        ({"margin": -0.1}, "its margin"),
        ({"fingerprint": "mine"}, "fingerprint"),
    ],
)
def test_a_damaged_forecast_is_refused_in_one_sentence(tmp_path, change, says):
    path = tmp_path / "forecast.json"
    path.write_text(json.dumps({**FORECAST.to_dict(), **change}))
    with pytest.raises(ValueError, match=f"{says}.*calibrate again$") as refused:
        Forecast.read(path)
    assert "forecast.json" in str(refused.value) and "\n" not in str(refused.value)


def test_half_a_forecast_is_not_readable(tmp_path):
    path = tmp_path / "forecast.json"
    path.write_text(json.dumps(FORECAST.to_dict())[:100])
    with pytest.raises(ValueError, match=r"forecast\.json is not readable as JSON"):
        Forecast.read(path)


def asked(folder, **changes):
    here = {**fingerprint_of(IDENTITY, 1), **changes}
    return forecast_of(folder, fingerprint=here, levels=LEVELS)


def test_a_forecast_of_another_machine_model_or_number_of_threads_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no forecast\.json.*apportion calibrate"):
        asked(tmp_path)
    FORECAST.write(tmp_path / "forecast.json")
    assert asked(tmp_path) == FORECAST
    for name in fingerprint_of(IDENTITY, 1):
        with pytest.raises(ValueError, match=f"with another {name}: run `apportion calibrate"):
            asked(tmp_path, **{name: "other"})
    with pytest.raises(ValueError, match="another processor and weights: run"):
        asked(tmp_path, weights="other", processor="other")
    with pytest.raises(ValueError, match="another levels: run"):
        forecast_of(tmp_path, fingerprint=fingerprint_of(IDENTITY, 1), levels=(0.5, 1.0))


def test_the_fingerprint_names_machine_threads_runtime_and_weights_but_not_the_host():
    found = fingerprint_of(IDENTITY, 2)
    assert set(found) == {
        *("processor", "flags", "cores", "threads", "runtime", "precision", "weights"),
    }
    assert found["threads"] == 2 and found["weights"] == "ab"


def test_the_processor_is_named_with_what_matters_of_its_flags(tmp_path):
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\ncpu family\t: 6\nmodel\t\t: 85\n"
        "flags\t\t: fpu avx2 avx512f avx512_vnni\n\nprocessor\t: 1\nmodel name\t: Some CPU @ 2GHz\n"
        "cpu family\t: 6\nmodel\t\t: 85\nflags\t\t: fpu avx2 avx512f avx512_vnni\n"
    )
    assert processor(tmp_path) == (
        "Some CPU @ 2GHz, cpu family 6, model 85",
        "avx2 avx512f avx512_vnni",
    )
    (tmp_path / "cpuinfo").write_text("Features\t: asimd i8mm\nCPU part\t: 0xd40\n")
    name, flags = processor(tmp_path)
    assert name.endswith("CPU part 0xd40") and flags == "asimd i8mm"
    assert processor(tmp_path / "missing")[1] == ""


def test_a_deadline_takes_the_lowest_level_and_says_so_once_or_is_strict():
    slow = replace(FORECAST, margin=1e6)
    told = []
    for _ in range(2):
        assert Deadline(slow, 5, tell=told.append).level([(1, 8)]) == 0.25
    assert set(told) == {"not even level 0.25 fits into 5 ms; it is run all the same"}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for rows in range(1, 4):
            Deadline(slow, 5).level([(rows, 8)])
    assert len(shown) == 1
    with pytest.raises(ValueError, match=r"5 ms are too few: level 0\.25, the lowest, .* 3 rows"):
        Deadline(slow, 5, strict=True).level([(1, 8), (2, 8)])


def test_time_that_has_passed_since_a_deadline_was_made_is_taken_off(monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("apportion.serving.milliseconds.forecast.time", clock)
    needed = 1.1 * FORECAST.milliseconds(rows=1, length=8, level=1.0)
    deadline = Deadline(FORECAST, needed + 10.0)
    now[0] = 0.009
    assert deadline.level([(1, 8)]) == 1.0
    now[0] = 0.0105
    assert deadline.level([(1, 8)]) == 0.5


def test_a_forecast_needs_no_torch():
    assert "torch" not in vars(sys.modules["apportion.serving.milliseconds.forecast"])
