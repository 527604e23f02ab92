"""Records that say the same, together, and tables of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apportion.serving.bench.timing import median_interval
from apportion.study.report.query import processors
from apportion.study.report.table import Table

Record = Mapping[str, Any]


def table_of(
    name: str,
    title: str,
    records: Sequence[Record],
    rows_of: Callable[[Sequence[Record]], list[dict[str, str]]],
    note: str,
) -> Table:
    """A table of records with what it was measured on; without records it says so."""
    rows = rows_of(records) if records else []
    if not rows:
        return Table(name, title, ("",), (("no record yet",),))
    if traced := [one for one in records if "machine" in one]:
        note += f" Measured on {processors(traced)}."
    return Table.of_rows(name, title, rows=rows, note=note)


def newest(records: Sequence[Record], *names: str) -> list[Record]:
    """Of records that say the same, the newest."""
    return list({tuple(str(one[name]) for name in names): one for one in records}.values())


def grouped(records: Sequence[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Records that say the same, together."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for one in records:
        groups.setdefault(tuple(one[name] for name in names), []).append(one)
    return groups


def with_interval(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """The median, and its 95 % interval where there are three values or more."""
    middle = shown(statistics.median(values))
    if len(values) < 3:
        return middle
    low, high = median_interval(list(values))
    return f"{middle} ({shown(low)} – {shown(high)})"


def percent(value: float) -> str:
    """A share as it is shown."""
    return f"{100 * value:.2f} %"
