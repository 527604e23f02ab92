"""Policies in virtual time: `python tools/compare_policies.py --out …/load/serving.jsonl`.

Two parts, each one record: short traces beside the clairvoyant optimum, and long ones beside
SlackFit. Batches take what an affine forecast says, or a measured one (`--forecast
FOLDER/forecast.json`).
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apportion.study.serving_records  # noqa: F401 - makes its kinds known
from apportion.serving.milliseconds.forecast import Forecast
from apportion.serving.server.replay import (
    Arrival,
    arrive,
    attainment,
    gaps,
    optimum,
    replay,
    value,
)
from apportion.serving.server.rival_policies import NAMED
from apportion.serving.server.rungs import build_ladder, usual_worth
from apportion.serving.server.setting import Forecasting, Setting, Waiting
from apportion.serving.server.terms import TIERS, Config
from apportion.study import records

_LONG = 300  # rows of a long trace
LOADS, SPREADS = (0.8, 1.2, 2.0), (1.0, 2.0, 8.0, 23.0)


@dataclass(frozen=True)
class Affine:
    """A start and a part for each row, by length and level; in proportions as MiniLM has them."""

    levels: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)

    def milliseconds(self, *, rows: int, length: int, level: float) -> float:
        """The time of one batch."""
        return (0.06 + level) * (5.0 + 23.0 * rows * length / 64)


def main() -> None:
    """Runs both parts and prints means."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--short", type=int, default=200, help="traces beside the optimum")
    words.add_argument("--rows", type=int, default=8, help="rows of a short trace, 12 at most")
    words.add_argument("--long", type=int, default=1000, help="traces beside SlackFit")
    words.add_argument("--forecast", type=Path)
    words.add_argument("--worth", type=lambda text: [float(w) for w in text.split(",")])
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    forecast = Forecast.read(given.forecast) if given.forecast else Affine()
    levels = forecast.levels
    known = dict(zip(levels, given.worth or usual_worth(levels), strict=True))
    found = [short(seed, given.rows, forecast, known) for seed in range(given.short)]
    found += [long(seed, forecast, known) for seed in range(given.long)]
    subject = f"forecast of {given.forecast.parent.name}" if given.forecast else "a line"
    for part, rows in (("short", given.rows), ("long", _LONG)):
        own = [record for record in found if record["part"] == part]
        if not own:
            continue
        record = {**summed(own), "part": part, "rows": rows, "subject": subject, "weights": ""}
        record |= records.provenance()
        records.record_of(record)  # complains of one that is not of its kind
        print(record)
        if given.out:
            records.append(given.out, record)


def summed(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the traces, and how often the ladder is at least as good as SlackFit."""

    def means(what: str) -> dict[str, float]:
        return {name: round(statistics.fmean(r[what][name] for r in found), 5) for name in NAMED}

    def wins(what: str) -> float:
        good = sum(r[what]["ladder"] >= r[what]["slackfit"] - 1e-9 for r in found)
        return round(good / len(found), 5)

    return {
        "kind": "policies",
        "traces": len(found),
        "worth": means("value"),
        "in_time": means("attainment"),
        "worth_as_slackfit": wins("value"),
        "in_time_as_slackfit": wins("attainment"),
        "dearest_as_slackfit": wins("dearest"),
    }


def setting_of(forecast: Forecasting, known: dict[float, float], batch: int) -> Setting:
    """What the policies know: the usual tiers, and a forecast."""
    levels = tuple(known)
    tiers = Config().fitted(levels).tiers
    times = [forecast.milliseconds(rows=1, length=64, level=level) for level in levels]
    rungs = build_ladder(tiers, levels, worth=list(known.values()), times=times)
    return Setting(rungs, levels, forecast, max_batch=batch, max_wait=60.0)


def trace(count: int, seed: int, setting: Setting) -> list[Arrival]:
    """Rows of mixed tiers and lengths; due after four times the whole budget's time."""
    draw, whole = random.Random(seed), setting.seconds(1, 64, setting.levels[-1])
    bounds = {
        tier.name: tier.levels_of(setting.levels) for tier in Config().fitted(setting.levels).tiers
    }
    rows = []
    for number in range(count):
        tier = draw.choice(TIERS).name
        lowest, highest = bounds[tier]
        length = draw.choice([32, 64, 64])
        rows.append(Waiting(number, tier, length, 4 * whole, 5.0, highest, lowest))
    load, spread = LOADS[seed % len(LOADS)], SPREADS[seed % len(SPREADS)]
    return arrive(rows, gaps(count, rate=load / whole, cv2=spread, seed=seed))


def short(seed: int, rows: int, forecast: Forecasting, known: dict[float, float]) -> dict[str, Any]:
    """A trace beside the optimum."""
    setting = setting_of(forecast, known, batch=2)
    arrivals = trace(rows, seed, setting)
    best = optimum(arrivals, setting=setting, worth=known.__getitem__)
    return {"part": "short", **measured(arrivals, setting, known, best)}


def long(seed: int, forecast: Forecasting, known: dict[float, float]) -> dict[str, Any]:
    """A trace too long for an optimum."""
    setting = setting_of(forecast, known, batch=32)
    arrivals = trace(_LONG, seed, setting)
    return {"part": "long", **measured(arrivals, setting, known, None)}


def measured(
    arrivals: list[Arrival], setting: Setting, known: dict[float, float], best: float | None
) -> dict[str, Any]:
    """Worth (of the optimum, or of all rows at the whole budget), attainment, the dearest tier."""
    found: dict[str, dict[str, float]] = {"value": {}, "attainment": {}, "dearest": {}}
    dearest = TIERS[-1].name
    for name, policy in NAMED.items():
        served = replay(arrivals, policy, setting=setting)
        most = best if best is not None else len(served) * known[setting.levels[-1]]
        found["value"][name] = value(served, known.__getitem__) / max(most, 1e-12)
        found["attainment"][name] = attainment(served)
        rows = [one for one in served if one.tier == dearest]
        found["dearest"][name] = value(rows, known.__getitem__) / max(len(rows), 1)
    return found


if __name__ == "__main__":
    main()
