"""Calibration: a machine whose law is known is foretold; a real one is measured and obeyed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from commands import run as command
from small_export import LEVELS, small_checkpoint, write_export
from texts import rows as text_rows

from apportion.elastic.checkpoint import save
from apportion.serving.bench import calibration
from apportion.serving.bench.calibration import calibrate, check_forecast, summarise
from apportion.serving.milliseconds.forecast import Forecast, fingerprint_of
from apportion.serving.runtime.session import Runtime
from apportion.study import records
from apportion.study.measuring import time_forecast

IDENTITY = {"weights": "ab" * 32, "tokenizer": "cd", "runtime": "a 1", "precision": "int8"}
TEXTS = [text for _, text in text_rows(12, 3)]


class Words(SimpleNamespace):
    def __len__(self):
        return 50


class KnownMachine:
    """A runtime whose calls move a clock by a law: an overhead, the square of the length, noise."""

    def __init__(self, folder, *, speed=1.0, noise=0.02):
        self.folder, self.threads, self.identity = folder, 1, IDENTITY
        self.levels, self.costs = (0.125, 0.25, 0.5, 1.0), (0.125, 0.25, 0.5, 1.0)
        self.tokenizer = Words(length=128)
        self.now, self.speed, self.noise = 0.0, speed, noise
        self.draw, self.calls = random.Random(3), []

    def law(self, rows, length, level):
        """Milliseconds."""
        per_row = 0.05 * length + 0.0002 * length**2
        return self.speed * (0.8 + level * per_row * rows * (1.0 + 0.3 / rows))

    def __call__(self, ids, *, budget):
        assert ids.min() >= 0 and ids.max() < 50
        self.calls.append((*ids.shape, budget))
        ms = self.law(*ids.shape, budget) * (1.0 + abs(self.draw.gauss(0.0, self.noise)))
        if self.draw.random() < 0.02:
            ms *= 3.0  # somebody else had the processor
        self.now += ms / 1000.0


@pytest.fixture
def known(tmp_path, monkeypatch):
    def make(**options):
        machine = KnownMachine(tmp_path, **options)
        clock = SimpleNamespace(monotonic=lambda: machine.now, perf_counter=lambda: machine.now)
        monkeypatch.setattr(calibration, "time", clock)
        return machine

    return make


def test_a_known_machine_is_foretold_between_its_points_within_a_few_percent(known, tmp_path):
    machine = known()
    forecast = calibrate(machine)
    assert 50.0 < machine.now <= 60.5
    assert Forecast.read(tmp_path / "forecast.json") == forecast == machine.forecast
    assert forecast.lengths == (8, 16, 32, 64, 96, 128) and forecast.rows == (1, 2, 4, 8, 16, 32)
    errors = [
        forecast.milliseconds(rows=rows, length=length, level=level)
        / machine.law(rows, length, level)
        - 1.0
        for rows in (1, 3, 6, 12, 24, 40)
        for length in (8, 26, 58, 80, 115, 128)
        for level in machine.levels
    ]
    assert np.quantile(np.abs(errors), 0.95) < 0.06 and max(map(abs, errors)) < 0.1
    assert 0.0 < forecast.margin < 0.15


def test_the_table_rises_with_level_length_and_rows_whatever_the_noise(known):
    table = np.array(calibrate(known(noise=0.5), seconds=20.0).table)
    for axis in range(3):
        assert (np.diff(table, axis=axis) >= 0.0).all()


def test_a_slow_model_is_measured_with_fewer_rows_and_a_too_slow_one_refused(known, tmp_path):
    machine = known(speed=10.0)
    forecast = calibrate(machine)
    assert 2 <= len(forecast.rows) < 6 and machine.now <= 61.0
    (tmp_path / "forecast.json").unlink()
    with pytest.raises(ValueError, match=r"60 s are too few to measure this model; about .* s"):
        calibrate(known(speed=1000.0))
    with pytest.raises(ValueError, match="seconds are a number above 0, not -1"):
        calibrate(known(), seconds=-1)
    assert list(tmp_path.iterdir()) == []


def test_a_machine_that_slows_down_in_the_middle_leaves_no_half_forecast(known, tmp_path):
    machine = known()
    quick = machine.law
    machine.law = lambda *call: quick(*call) * (1.0 if len(machine.calls) < 8 else 1000.0)
    with pytest.raises(ValueError, match="60 s were too few on a machine as busy as this one"):
        calibrate(machine)
    assert list(tmp_path.iterdir()) == []


def test_a_check_compares_eight_targets_on_nine_shapes_that_the_table_does_not_have(known):
    machine = known()
    forecast = calibrate(machine)
    checks = check_forecast(machine, repeats=20)
    assert len(checks) == 8 * 3 * 3
    shapes = {(one["rows"], one["length"]) for one in checks}
    assert len(shapes) == 9 and not {length for _, length in shapes} & set(forecast.lengths)
    for one in checks:
        shape = {"rows": one["rows"], "length": one["length"]}
        assert one["level"] == forecast.level_within(one["target_ms"] * 1.0001, **shape)
        law = machine.law(one["rows"], one["length"], one["level"])
        assert one["median_ms"] == pytest.approx(law, rel=0.05)
        assert one["error"] == pytest.approx(one["forecast_ms"] / one["median_ms"] - 1, abs=1e-3)
    assert {one["level"] for one in checks} == set(machine.levels)
    found = summarise(checks)
    assert found["median_error"] < 0.07 and found["p95_error"] < 0.15
    assert found["calls_within"] > 0.93
    with pytest.raises(ValueError, match="at least 5 repeats, not 4"):
        check_forecast(machine, repeats=4)


def test_the_check_of_a_forecast_that_is_twice_too_low_says_so(known):
    machine = known()
    calibrate(machine)
    machine.speed = 2.0
    found = summarise(check_forecast(machine, repeats=5))
    assert found["median_error"] > 0.4 and found["calls_within"] < 0.5


def test_checks_are_records_of_their_kind(known):
    machine = known()
    calibrate(machine)
    lines = time_forecast(machine, repeats=5)
    assert {type(records.record_of(line)) for line in lines} == {records.ForecastRecord}
    assert lines[0]["stage"] == IDENTITY["weights"][:16] and lines[0]["precision"] == "int8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_export(tmp_path_factory.mktemp("calibrated"))


@pytest.fixture
def runtime(folder):
    """Its forecast: level 0.5 takes 500 s, whatever the call, and so on."""
    made = Runtime(folder)
    table = tuple((((1e6 * level,) * 2),) for level in LEVELS)
    here = fingerprint_of(made.identity, 1)
    Forecast(LEVELS, (8,), (1, 32), table, 0.0, here).write(folder / "forecast.json")
    yield made
    (folder / "forecast.json").unlink()


def test_predict_runs_the_highest_level_that_fits(runtime):
    by_level = {level: runtime.predict(TEXTS, budget=level) for level in LEVELS}
    assert by_level[0.25] != by_level[0.5] != by_level[1.0]
    assert runtime.predict(TEXTS, within_ms=0.7e6) == by_level[0.5]
    assert runtime.predict(TEXTS, within_ms=1.5e6) == by_level[1.0]
    assert runtime.predict(TEXTS, within_ms=1.5e6, budget=0.6) == by_level[0.5]
    # Two calls take twice as long: the target is of all texts.
    assert runtime.predict(TEXTS, within_ms=0.7e6, batch=6) == by_level[0.25]
    assert runtime.predict([], within_ms=5) == []


def test_if_not_even_the_lowest_level_fits_it_is_run_with_a_warning_or_strict(runtime):
    with pytest.warns(UserWarning, match=r"not even level 0\.25 fits into 5 ms"):
        found = runtime.predict(TEXTS, within_ms=5)
    assert found == runtime.predict(TEXTS, budget=0.25)
    with pytest.raises(ValueError, match="5 ms are too few"):
        runtime.predict(TEXTS, within_ms=5, strict=True)
    with pytest.raises(ValueError, match="above 0, not -1"):
        runtime.predict(TEXTS, within_ms=-1)


def test_predict_refuses_a_forecast_that_is_missing_foreign_or_of_other_weights(folder, runtime):
    path = folder / "forecast.json"
    mine = json.loads(path.read_text())
    path.write_text(json.dumps({**mine, "fingerprint": {**mine["fingerprint"], "weights": "x"}}))
    with pytest.raises(ValueError, match=r"another weights: run `apportion calibrate"):
        Runtime(folder).predict(TEXTS, within_ms=5)
    path.write_text(json.dumps(mine))
    with pytest.raises(ValueError, match=r"another threads: run `apportion calibrate"):
        Runtime(folder, threads=2).predict(TEXTS, within_ms=5)
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a forecast; calibrate again"):
        Runtime(folder).predict(TEXTS, within_ms=5)
    path.unlink()
    with pytest.raises(ValueError, match=r"has no forecast\.json"):
        Runtime(folder).predict(TEXTS, within_ms=5)
    path.write_text(json.dumps(mine))


def test_the_command_predicts_within_milliseconds_and_says_once_what_does_not_fit(
    runtime, folder, tmp_path, capsys
):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    words = ["predict", str(folder), str(tmp_path / "texts.txt")]
    _, half, _ = command(capsys, *words, "--budget", "0.5")
    assert command(capsys, *words, "--within-ms", "700000")[:2] == (0, half)
    assert command(capsys, *words, "--within-ms", "700000", "-b", "0.25")[1] != half
    code, _, err = command(capsys, *words, "--within-ms", "5", "--batch", "4")
    assert code == 0 and err.count("not even level 0.25 fits into 5 ms") == 1
    for more, says in [
        (["--within-ms", "5", "--strict"], "5 ms are too few"),
        (["--within-ms", "0"], "above 0, not 0.0"),
        (["--within-ms", "5", "--soft"], "--within-ms needs skipping"),
        (["--strict"], "--strict needs --within-ms"),
    ]:
        code, _, err = command(capsys, *words, *more)
        assert code == 2 and says in err


def test_the_command_checks_a_forecast_and_keeps_records(runtime, folder, tmp_path, capsys):
    kept = tmp_path / "forecast.jsonl"
    words = ["calibrate", str(folder), "--check", "--repeats", "5"]
    code, out, _ = command(capsys, *words, "--records", str(kept))
    assert code == 0 and "72 targets: the forecast is off by" in out
    lines = records.read(kept)
    assert len(lines) == 72 and {line["kind"] for line in lines} == {"forecast"}
    code, _, err = command(capsys, "calibrate", str(folder), "--records", str(kept))
    assert code == 2 and "add --check" in err


@pytest.mark.slow
def test_the_command_calibrates_and_what_it_wrote_is_used(folder, capsys):
    code, out, _ = command(capsys, "calibrate", str(folder), "--seconds", "10")
    assert code == 0 and "milliseconds of a call, rows x tokens" in out
    forecast = Runtime(folder).forecast
    assert forecast.levels == LEVELS and all(level in out for level in ("0.25", "0.5"))
    assert Runtime(folder).predict(TEXTS, within_ms=1e7) == Runtime(folder).predict(TEXTS)
    code, out, _ = command(capsys, "calibrate", str(folder), "--seconds", "10", "--json")
    assert code == 0 and Forecast.from_dict(json.loads(out)).levels == LEVELS
    (folder / "forecast.json").unlink()


@pytest.mark.slow
def test_an_exported_folder_is_calibrated_and_obeyed_without_torch(folder):
    script = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'accelerate', 'onnx'): sys.modules[name] = None\n"
        "from apportion import Runtime, calibrate\n"
        "runtime = Runtime(sys.argv[1])\n"
        "calibrate(runtime, seconds=10)\n"
        "print(Runtime(sys.argv[1]).predict(['a match'], within_ms=1e6)[0][0])\n"
    )
    words = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in Runtime(folder).classes
    (folder / "forecast.json").unlink()


@pytest.mark.slow
def test_a_checkpoint_is_calibrated_as_an_exported_folder_is(folder, tmp_path):
    """Its forecast lies beside weights that still load, and is of torch, not of ONNX Runtime."""
    save(small_checkpoint(tmp_path), tmp_path / "nested")
    forecast = calibrate(Runtime(tmp_path / "nested", levels=LEVELS), seconds=20)
    assert str(forecast.fingerprint["runtime"]).startswith("torch")
    again = Runtime(tmp_path / "nested", levels=LEVELS)
    assert again.forecast == forecast
    assert again.predict(TEXTS, within_ms=1e7) == again.predict(TEXTS)
    (tmp_path / "nested" / "forecast.json").rename(folder / "forecast.json")
    with pytest.raises(ValueError, match="another runtime and weights: run"):
        Runtime(folder).predict(TEXTS, within_ms=5)
    (folder / "forecast.json").unlink()
