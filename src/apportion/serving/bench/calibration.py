"""Calibrating: this machine's forecast, measured in a minute, and how well it foretells calls."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.files import holding
from apportion.serving.milliseconds.forecast import FORECAST, Forecast, fingerprint_of
from apportion.serving.runtime.session import Runtime

ROWS = (1, 2, 4, 8, 16, 32)
_SHORTEST = 8  # tokens
_ROUNDS = 3  # of all calls that must fit into the time; fewer rows are measured if they do not
_MOMENT, _MOST = 5.0, 5  # a round repeats a call for so many milliseconds, and so often at most
_PROBES = 6  # one call of so many is of a shape that the table does not have
_HELD = 0.95  # share of the calls that end within forecast and margin
# Shapes of the check lie between those of the table.
CHECKED_ROWS = (1, 6, 24)
CHECKED_LENGTHS = (0.2, 0.45, 0.9)  # of the longest
CHECKED_TARGETS = 8

_Call = tuple[float, int, int]  # level, length, rows


def calibrate(
    runtime: Runtime,
    *,
    seconds: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> Forecast:
    """Measures how long calls take here, and writes that beside the model as forecast.json.

    The first round of calls warms up. Then all calls of the table take turns in a new order each
    round, short ones several times, among them some of shapes between those of the table, until
    the time is over: a spell in which the machine is slow falls on all of them. The table holds
    medians, made to rise with level, length and rows; the margin is by how much 19 of 20 calls in
    between stay below their forecast. Fewer rows are measured where a model is slow. Don't
    calibrate while something else is running.
    """
    if not 0.0 < seconds < float("inf"):
        raise ValueError(f"seconds are a number above 0, not {seconds!r}")
    path = Path(runtime.folder) / FORECAST
    with holding(path):  # two calibrations at a time would measure each other
        end = time.monotonic() + seconds
        lengths = _lengths(runtime.tokenizer.length)
        rows = _affordable_rows(runtime, lengths, seconds)
        cells = [(level, n, count) for level in runtime.levels for n in lengths for count in rows]
        times, probes = _take_turns(runtime, cells, seconds=seconds, end=end, progress=progress)
        medians = np.array([statistics.median(times[cell]) for cell in cells])
        table = medians.reshape(len(runtime.levels), len(lengths), len(rows))
        for axis in range(3):  # noise must not make more work look like less
            table = np.maximum.accumulate(table, axis=axis)
        forecast = Forecast(
            levels=runtime.levels,
            lengths=lengths,
            rows=rows,
            table=tuple(
                tuple(tuple(float(f"{ms:.4g}") for ms in row) for row in of_level)
                for of_level in table
            ),
            margin=0.0,
            fingerprint=fingerprint_of(runtime.identity, runtime.threads),
        )
        forecast = _with_margin(forecast, probes)
        forecast.write(path)
    runtime.forecast = forecast
    return forecast


def _lengths(longest: int) -> tuple[int, ...]:
    """The longest, three quarters of it, and halves of it down to a few tokens."""
    found = {longest, max(1, 3 * longest // 4)}
    while longest // 2 >= _SHORTEST:
        longest //= 2
        found.add(longest)
    return tuple(sorted(found))


def _affordable_rows(runtime: Runtime, lengths: Sequence[int], seconds: float) -> tuple[int, ...]:
    """The counts of rows of which enough rounds can be measured in the time."""
    longest, random_ids = lengths[-1], np.random.default_rng(0)
    row = made_up_ids(runtime, 1, longest, random_ids)
    _milliseconds(runtime, row, runtime.levels[-1])
    whole = min(_milliseconds(runtime, row, runtime.levels[-1]) for _ in range(3)) / 1000.0
    # A row more costs at most what the first one does, and a token more too, or nearly so.
    per_row = whole * sum(runtime.costs) * sum(lengths) / longest
    for last in range(len(ROWS), 1, -1):
        needed = per_row * sum(ROWS[:last]) * (_ROUNDS + 1)
        if needed <= seconds:
            return ROWS[:last]
    raise ValueError(
        f"{seconds:g} s are too few to measure this model; about {needed:.2g} s would do"
    )


def _take_turns(
    runtime: Runtime,
    cells: Sequence[_Call],
    *,
    seconds: float,
    end: float,
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[_Call, list[float]], list[tuple[_Call, float]]]:
    """Milliseconds of each call of the table, and of others between them, until the time is over.

    A round that is cut short counts as far as it got.
    """
    draw, random_ids = random.Random(0), np.random.default_rng(0)
    lengths, rows = sorted({cell[1] for cell in cells}), sorted({cell[2] for cell in cells})
    times: dict[_Call, list[float]] = {cell: [] for cell in cells}
    probes: list[tuple[_Call, float]] = []
    first: dict[_Call, float] = {}  # of the round that warms up
    turn = 0
    while True:
        calls: list[tuple[_Call, bool]] = []
        for cell in cells:
            often = int(_MOMENT / first[cell]) if cell in first else 1
            calls += [(cell, False)] * min(_MOST, max(1, often))
        for _ in range(max(1, len(calls) // _PROBES)):
            shape = _drawn(draw, lengths), _drawn(draw, rows)
            calls.append(((draw.choice(runtime.levels), *shape), True))
        draw.shuffle(calls)
        for call, is_probe in calls:
            if time.monotonic() >= end:
                fewest = min(map(len, times.values()))
                if fewest < 1 or not probes:
                    raise ValueError(
                        f"{seconds:g} s were too few on a machine as busy as this one: "
                        "wait until it is idle, or give it more"
                    )
                return times, probes
            level, length, count = call
            taken = _milliseconds(runtime, made_up_ids(runtime, count, length, random_ids), level)
            if turn and is_probe:
                probes.append((call, taken))
            elif turn:
                times[call].append(taken)
            elif not is_probe:
                first[call] = taken
            if progress:
                whole = max(1, round(seconds))
                progress(min(whole, int(seconds - (end - time.monotonic()))), whole)
        turn += 1


def _drawn(draw: random.Random, known: Sequence[int]) -> int:
    """A value between two neighbours of the table, small ones as often as large ones."""
    place = draw.randrange(max(1, len(known) - 1))
    return draw.randint(known[place], known[min(place + 1, len(known) - 1)])


def made_up_ids(
    runtime: Runtime, rows: int, length: int, random_ids: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of any words: what they say does not change how long they take."""
    return random_ids.integers(0, len(runtime.tokenizer), (rows, length))


def _milliseconds(runtime: Runtime, ids: NDArray[np.int64], level: float) -> float:
    started = time.perf_counter()
    runtime(ids, budget=level)
    return 1000.0 * (time.perf_counter() - started)


def _with_margin(forecast: Forecast, probes: Iterable[tuple[_Call, float]]) -> Forecast:
    """The forecast with the margin that most calls of other shapes stay within."""
    over = [
        taken / forecast.milliseconds(rows=rows, length=length, level=level) - 1.0
        for (level, length, rows), taken in probes
    ]
    margin = max(0.0, float(np.quantile(over, _HELD)))
    return Forecast.from_dict({**forecast.to_dict(), "margin": float(f"{margin:.3g}")})


def check_forecast(
    runtime: Runtime,
    *,
    repeats: int = 30,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """What was foretold beside what calls took: one record for each target and shape.

    Targets lie between what the lowest level asks for and what the whole one does, evenly by
    ratio; shapes lie between those of the table. Each call runs the level that its target allows,
    and all of them take turns.
    """
    if repeats < 5:
        raise ValueError(f"a check takes at least 5 repeats, not {repeats}")
    forecast, draw, random_ids = runtime.forecast, random.Random(1), np.random.default_rng(1)
    longest = runtime.tokenizer.length
    lengths = [max(1, round(share * longest)) for share in CHECKED_LENGTHS]
    cells: list[tuple[float, _Call]] = []
    for length in lengths:
        for rows in CHECKED_ROWS:
            least, most = (
                forecast.milliseconds(rows=rows, length=length, level=level)
                * (1.0 + forecast.margin)
                for level in (forecast.levels[0], forecast.levels[-1])
            )
            for target in np.geomspace(least, most, CHECKED_TARGETS).tolist():
                level = forecast.level_within(target, rows=rows, length=length)
                cells.append((target, (level or forecast.levels[0], length, rows)))
    times: dict[int, list[float]] = {place: [] for place in range(len(cells))}
    order = list(times)
    for turn in range(-1, repeats):
        draw.shuffle(order)
        for place in order:
            level, length, rows = cells[place][1]
            taken = _milliseconds(runtime, made_up_ids(runtime, rows, length, random_ids), level)
            if turn >= 0:
                times[place].append(taken)
        if progress:
            progress(turn + 2, repeats + 1)
    return [
        {
            "kind": "forecast",
            "target_ms": round(target, 4),
            **_compared(forecast, call, taken=times[place], target=target),
            "margin": forecast.margin,
            "repeats": repeats,
            "threads": runtime.threads,
            "runtime": runtime.identity["runtime"],
            "precision": runtime.identity["precision"],
        }
        for place, (target, call) in enumerate(cells)
    ]


def _compared(
    forecast: Forecast, call: _Call, *, taken: Sequence[float], target: float
) -> dict[str, Any]:
    level, length, rows = call
    foretold = forecast.milliseconds(rows=rows, length=length, level=level)
    median = statistics.median(taken)
    return {
        "rows": rows,
        "length": length,
        "level": level,
        "forecast_ms": round(foretold, 4),
        "median_ms": round(median, 4),
        "p95_ms": round(float(np.quantile(taken, 0.95)), 4),
        "error": round(foretold / median - 1.0, 4),
        "within": round(sum(one <= target for one in taken) / len(taken), 4),
    }


def summarise(checks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the records of a check say together."""
    errors = [abs(one["error"]) for one in checks]
    return {
        "median_error": round(statistics.median(errors), 4),
        "p95_error": round(float(np.quantile(errors, 0.95)), 4),
        "calls_within": round(statistics.fmean(one["within"] for one in checks), 4),
        "p95_within": round(
            statistics.fmean(one["p95_ms"] <= one["target_ms"] for one in checks), 4
        ),
    }
