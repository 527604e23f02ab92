"""Forecasts: how many milliseconds a call takes on this machine, by rows, tokens and level.

Pure: no clock but a deadline's, no torch. `calibration` measures what stands in the table.

forecast.json           beside the model: the table, its margin, and the fingerprint of the machine
                        and the model that it was measured with
"""

from __future__ import annotations

import math
import os
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from apportion.files import json_text, read_json, write_text
from apportion.serving.milliseconds.machine import processor

FORMAT, VERSION = "apportion-forecast", 1
FORECAST = "forecast.json"
_KEYS = {"format", "version", "levels", "lengths", "rows", "table", "margin", "fingerprint"}


@dataclass(frozen=True)
class Forecast:
    """How long a call takes: `forecast.milliseconds(rows=8, length=128, level=0.25)`.

    A table of medians. Between two measured lengths, and between two measured counts of rows, time
    is a straight line: it grows with the square of the length, and a row more costs less in a small
    call than in a large one, so that no single line fits. Below the shortest length time is that of
    the shortest; above the most rows the last line goes on.
    """

    levels: tuple[float, ...]  # rising, as are lengths and rows
    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    table: tuple[tuple[tuple[float, ...], ...], ...]  # milliseconds by level, length, rows
    margin: float  # one call of 20 takes longer than its forecast by more than this share
    fingerprint: Mapping[str, str | int]  # what it was measured with

    def milliseconds(self, *, rows: int, length: int, level: float) -> float:
        """The time of a call of so many rows, padded to so many tokens, at a level."""
        if rows < 1 or length < 1:
            raise ValueError(f"a call has a row and a token at least, not {rows} x {length}")
        if level not in self.levels:
            known = ", ".join(f"{one:g}" for one in self.levels)
            raise ValueError(f"the forecast is of levels {known}, not of {level!r}")
        by_length = self.table[self.levels.index(level)]
        short, long, share = _between(length, self.lengths)
        few, many, part = _between(rows, self.rows)
        ends = [
            by_length[place][few] + part * (by_length[place][many] - by_length[place][few])
            for place in (short, long)
        ]
        return ends[0] + share * (ends[1] - ends[0])

    def level_within(
        self, ms: float, *, rows: int, length: int, budget: float = 1.0
    ) -> float | None:
        """The highest level whose forecast fits into so many milliseconds, with its margin.

        Not above the budget. None says that not even the lowest level fits.
        """
        return self.level_of_calls(check_milliseconds(ms), [(rows, length)], budget=budget)

    def level_of_calls(
        self, ms: float, calls: Sequence[tuple[int, int]], *, budget: float = 1.0
    ) -> float | None:
        """The highest level at which some calls (rows, length), one after the other, fit."""
        for level in reversed(self.levels):
            if level <= budget and self.of_calls(calls, level) * (1.0 + self.margin) <= ms:
                return level
        return None

    def of_calls(self, calls: Sequence[tuple[int, int]], level: float) -> float:
        """The milliseconds of some calls (rows, length), one after the other."""
        return sum(
            self.milliseconds(rows=rows, length=length, level=level) for rows, length in calls
        )

    def to_dict(self) -> dict[str, Any]:
        """The forecast as its file has it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": dict(self.fingerprint),
            "margin": self.margin,
            "levels": list(self.levels),
            "lengths": list(self.lengths),
            "rows": list(self.rows),
            "table": [[list(row) for row in of_level] for of_level in self.table],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Forecast:
        """The inverse of `to_dict`, checked."""
        if values.get("format") != FORMAT or values.get("version") != VERSION:
            raise ValueError("it is not a forecast")
        if set(values) != _KEYS:
            odd = ", ".join(sorted(set(values) ^ _KEYS))
            raise ValueError(f"it is damaged: {odd} are missing or unknown")
        levels, lengths, rows = values["levels"], values["lengths"], values["rows"]
        if not (_rising(levels, float) and _rising(lengths, int) and _rising(rows, int)):
            raise ValueError("it is damaged: levels, lengths and rows are rising numbers above 0")
        table, margin, fingerprint = values["table"], values["margin"], values["fingerprint"]
        shaped = _is_list(table, len(levels)) and all(
            _is_list(of_level, len(lengths))
            and all(_is_list(row, len(rows)) and all(map(_is_time, row)) for row in of_level)
            for of_level in table
        )
        if not shaped:
            raise ValueError("it is damaged: its table has other sizes, or times that are none")
        if not (_is_time(margin) or margin == 0) or not isinstance(fingerprint, dict):
            raise ValueError("it is damaged: its margin or its fingerprint can't be right")
        cells = tuple(tuple(tuple(map(float, row)) for row in of_level) for of_level in table)
        return cls(
            tuple(levels), tuple(lengths), tuple(rows), cells, float(margin), dict(fingerprint)
        )

    @classmethod
    def read(cls, path: str | Path) -> Forecast:
        """The forecast in a file."""
        values = read_json(Path(path))
        try:
            return cls.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{path} can't be used: {error}; calibrate again") from None

    def write(self, path: str | Path) -> None:
        """Writes it as a file, whole or not at all."""
        write_text(Path(path), json_text(self.to_dict(), FORECAST))


class Deadline:
    """Milliseconds from now on: made before texts are encoded, asked for a level after that.

    If not even the lowest level fits, it is taken and `tell` is told so; or, if `strict`, that is
    an error.
    """

    def __init__(
        self,
        forecast: Forecast,
        ms: float,
        *,
        strict: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.forecast, self.ms = forecast, check_milliseconds(ms)
        self.strict, self.tell = strict, tell or _warn
        self._started = time.perf_counter()

    def level(self, calls: Sequence[tuple[int, int]], *, budget: float = 1.0) -> float:
        """The highest level, up to a budget, at which these calls (rows, length) end in time."""
        left = self.ms - 1000.0 * (time.perf_counter() - self._started)
        found = self.forecast.level_of_calls(left, calls, budget=budget)
        if found is not None:
            return found
        lowest = self.forecast.levels[0]
        if self.strict:
            takes = self.forecast.of_calls(calls, lowest) * (1.0 + self.forecast.margin)
            raise ValueError(
                f"{self.ms:g} ms are too few: level {lowest:g}, the lowest, takes up to "
                f"{takes:.3g} ms for {sum(rows for rows, _ in calls)} rows"
            )
        # The same words each time, so that a warning is shown once.
        self.tell(f"not even level {lowest:g} fits into {self.ms:g} ms; it is run all the same")
        return lowest


def forecast_of(
    folder: Path, *, fingerprint: Mapping[str, str | int], levels: Sequence[float]
) -> Forecast:
    """The forecast beside a model, if it is of this machine and of this model."""
    path, again = folder / FORECAST, f"run `apportion calibrate {folder}`"
    if not path.is_file():
        raise ValueError(f"{folder} has no {FORECAST}, so milliseconds mean nothing yet: {again}")
    found = Forecast.read(path)
    measured = {**found.fingerprint, "levels": found.levels}
    here = {**fingerprint, "levels": tuple(levels)}
    other = [name for name in here if measured.get(name) != here[name]]
    if other:
        raise ValueError(f"{path} was measured with another {' and '.join(other)}: {again}")
    return found


def fingerprint_of(identity: Mapping[str, str], threads: int) -> dict[str, str | int]:
    """What decides how long a call takes: the machine, and what runs on it."""
    name, flags = processor()
    return {
        "processor": name,
        "flags": flags,
        "cores": os.cpu_count() or 1,
        "threads": threads,
        **{key: identity[key] for key in ("runtime", "precision", "weights")},
    }


def check_milliseconds(ms: float) -> float:
    """Complains of a time that no call could end in."""
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0.0 < ms < math.inf:
        raise ValueError(f"milliseconds are a number above 0, not {ms!r}")
    return float(ms)


def _between(at: float, known: Sequence[float]) -> tuple[int, int, float]:
    """The known points around a value, and how far it lies from the first to the second.

    Above the last one, beyond 1: the last line goes on. Below the first one, 0.
    """
    if len(known) == 1 or at <= known[0]:
        return 0, 0, 0.0
    high = min(bisect_right(known, at), len(known) - 1)
    return high - 1, high, (at - known[high - 1]) / (known[high] - known[high - 1])


def _is_list(values: Any, count: int) -> bool:
    return isinstance(values, list) and len(values) == count


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0.0 < value < math.inf


def _rising(values: Any, kind: Any) -> bool:
    """Whether these are numbers above 0, one at least, each larger than the one before."""
    return (
        isinstance(values, list)
        and bool(values)
        and all(type(value) is kind and 0 < value < math.inf for value in values)
        and all(first < second for first, second in pairwise(values))
    )


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
