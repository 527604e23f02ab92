"""A forecast that was not measured: tests of a server need one, and the machine may be busy."""

from __future__ import annotations

from pathlib import Path

from apportion.serving.milliseconds.forecast import FORECAST, Forecast, fingerprint_of
from apportion.serving.runtime.session import Runtime


def write_forecast(folder: Path, each: float = 4.0) -> Forecast:
    """Milliseconds in proportion to rows, length and level, written beside a model."""
    runtime = Runtime(folder)
    lengths, rows = (16, max(17, runtime.tokenizer.length)), (1, 32)
    table = tuple(
        tuple(tuple((0.1 + level) * each * length / 16 * n for n in rows) for length in lengths)
        for level in runtime.levels
    )
    made = Forecast(runtime.levels, lengths, rows, table, 0.1, fingerprint_of(runtime.identity, 1))
    made.write(folder / FORECAST)
    return made
