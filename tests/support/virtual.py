"""A server without a machine: a forecast in closed form, a clock that is set, queues to draw."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from hypothesis import strategies as st

from apportion.data.tokenizer import Tokenizer
from apportion.serving.guarantees.certificate import Certificate
from apportion.serving.server.admitted import Model
from apportion.serving.server.promise import UNPROMISED
from apportion.serving.server.rungs import build_ladder, usual_worth
from apportion.serving.server.setting import Setting, Waiting
from apportion.serving.server.terms import Config, Tier

LEVELS = (0.125, 0.25, 0.5, 1.0)
TIERS = (
    Tier("low-cost", 0.25, weight=1.0),
    Tier("balanced", 0.5, weight=8.0, price=2.0),
    Tier("high-quality", 1.0, weight=64.0, price=4.0),
)


@dataclass(frozen=True)
class Affine:
    """Milliseconds of a batch: a start and a part for each row, both by length and level."""

    start: float = 2.0
    each: float = 26.0  # of a row of 64 tokens at level 1

    def milliseconds(self, *, rows: int, length: int, level: float) -> float:
        return (0.2 + level) * (self.start + self.each * rows * length / 64)


@dataclass
class VirtualClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def setting(forecast=None, levels=LEVELS, tiers=TIERS, **changes) -> Setting:
    forecast = forecast or Affine()
    times = [forecast.milliseconds(rows=1, length=64, level=level) for level in levels]
    rungs = build_ladder(tiers, levels, worth=usual_worth(levels), times=times)
    return Setting(rungs, tuple(levels), forecast, **changes)


def row(number=0, tier="high-quality", length=64, due=0.1, latest=5.0, **changes) -> Waiting:
    bounds = {one.name: one.levels_of(LEVELS) for one in TIERS}[tier]
    values = {"highest": bounds[1], "lowest": bounds[0], **changes}
    return Waiting(number, tier, length, due, latest, **values)


@st.composite
def waiting(draw, number=0, shortest=0.0, longest=2.0):
    """A row of any tier, due between two times."""
    tier = draw(st.sampled_from(TIERS))
    lowest, highest = tier.levels_of(LEVELS)
    allowed = [level for level in LEVELS if lowest <= level <= highest]
    floor = draw(st.sampled_from(allowed))
    top = draw(st.sampled_from([level for level in allowed if level >= floor]))
    due = draw(st.floats(shortest, longest))
    length = draw(st.sampled_from([16, 32, 48, 64, 128]))
    return Waiting(number, tier.name, length, due, due + 5.0, highest=top, lowest=floor)


@st.composite
def queues(draw, most=12, **bounds):
    count = draw(st.integers(1, most))
    return [draw(waiting(number, **bounds)) for number in range(count)]


@cache
def words():
    """A tokenizer of a few words: one token each, 128 at most."""
    return Tokenizer.learn(["a b c d e f g"], 128, size=20, min_count=1)


def logits(input_ids, attention_mask=None, *, budget=1.0):
    """What a model might say: by the row's own tokens and the budget alone."""
    mask = np.ones_like(input_ids) if attention_mask is None else attention_mask
    total = (input_ids * mask).sum(axis=1) + mask.sum(axis=1) * budget
    return np.stack([np.sin(total), np.cos(total)], axis=1).astype(np.float32)


IDENTITY = {"weights": "0" * 64, "tokenizer": "1" * 64, "runtime": "numpy", "precision": "float32"}


def model(
    runtime=logits,
    classes=("no", "yes"),
    identity=None,
    config=None,
    promise=UNPROMISED,
    **changes,
) -> Model:
    """A model of two classes at the usual levels."""
    config = (config or Config(tiers=TIERS)).fitted(LEVELS)
    return Model(
        runtime,
        LEVELS,
        LEVELS,
        classes,
        words(),
        identity or IDENTITY,
        config,
        setting(tiers=config.tiers, **changes),
        promise,
    )


def certificate(thresholds=(0.5, 0.4, None), **changes) -> Certificate:
    """A certificate that nobody earned."""
    values = {
        "disagree_at_most": 0.01,
        "confidence": 0.95,
        "rows": 2000,
        "disagreements": 3,
        "bound": 0.004,
        "levels": LEVELS,
        "thresholds": thresholds,
        "ends": (0.5, 0.25, 0.0, 0.25),
        "cost": 0.4,
        "speed": 2.0,
        "rows_per_second": 2.0,
        "whole_rows_per_second": 1.0,
        "batch": 32,
        "threads": 1,
        "seed": 0,
        "tuned_rows": 1000,
        "texts": "2" * 64,
        "identity": dict(IDENTITY),
        "by_class": {},
        "by_length": {},
    }
    return Certificate(**{**values, **changes})
