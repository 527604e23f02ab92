"""A model that drops tokens at work: calibrated, certified and served as any other."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from asgi import call
from shortened import frontier
from small_export import LEVELS, small_checkpoint
from texts import rows
from written_forecast import write_forecast

from apportion.serving.bench import calibration
from apportion.serving.bench.calibration import calibrate
from apportion.serving.guarantees.certifying import certify
from apportion.serving.runtime.exporting import export
from apportion.serving.runtime.session import Runtime
from apportion.serving.server.app import build_app
from apportion.serving.server.engine import ServingEngine, load_model
from apportion.serving.server.terms import Capacity, Config

# Pairs of short texts: all of them are long enough that tokens are dropped.
TEXTS = [f"{one} {two}" for (_, one), (_, two) in zip(rows(120, 1), rows(120, 700), strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("shortened")
    made = small_checkpoint(home)
    made.model.shortened(frontier(made.model.units.layers))
    export(made, home / "onnx", levels=LEVELS, texts=TEXTS[:24])
    return home / "onnx"


class Ticking(Runtime):
    """Its calls move a clock by what they cost."""

    now = 0.0

    def __call__(self, input_ids, *args, budget=1.0, **options):
        cost = self.costs[self.levels.index(self.level_of(budget))]
        self.now += 0.002 * cost * input_ids.size / 32
        return super().__call__(input_ids, *args, budget=budget, **options)


def test_it_is_calibrated(folder, monkeypatch):
    runtime = Ticking(folder)
    assert runtime.facts["shares"][0] is not None
    clock = SimpleNamespace(monotonic=lambda: runtime.now, perf_counter=lambda: runtime.now)
    monkeypatch.setattr(calibration, "time", clock)
    forecast = calibrate(runtime, seconds=10)
    again = Runtime(folder)
    assert again.forecast == forecast
    times = [forecast.milliseconds(rows=8, length=32, level=level) for level in LEVELS]
    np.testing.assert_allclose(times, [16 * cost for cost in runtime.costs], rtol=0.05)
    # A call of 24 rows at the lowest level, and not at the next.
    within = 3 * (times[0] + times[1]) / 2
    assert again.predict(TEXTS[:24], within_ms=within) == again.predict(TEXTS[:24], budget=0.25)


def test_it_is_certified(folder):
    made = certify(folder, TEXTS, disagree_at_most=0.3, confidence=0.8, timed=8)
    assert made.bound <= 0.3 and made.rows == 80
    made.check(Runtime(folder).identity)


def test_it_is_served(folder):
    write_forecast(folder)
    engine = ServingEngine(load_model(folder, Config(machine=Capacity(threads=1))))
    engine.start()
    try:
        app = build_app(engine, name="short")
        for budget in (0.25, 1.0):
            reply = call(app, "POST", "/v1/classify", {"input": TEXTS[:3], "budget": budget})
            assert reply.status == 200, reply.body
            told = [row["label"] for row in reply.json["data"]]
            assert reply.json["apportion"]["budget"] == budget
            wanted = Runtime(folder).predict(TEXTS[:3], budget=budget)
            assert told == [label for label, _ in wanted]
    finally:
        engine.stop()
