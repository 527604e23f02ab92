"""What policies see: rows that wait, plans, and a machine that batches take time on.

Pure: no clock, no threads, no state but a memory of forecasts. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from apportion.serving.server.terms import Rule, Terms

BUCKET = 16  # lengths are padded to multiples: few shapes, few forecasts
# Nobody knows who comes next. So a share of the time that a row could wait is left for others:
# more of it lowers budgets that nobody needed lower.
RESERVED = 0.08


class Forecasting(Protocol):
    """What predicts how long a batch takes."""

    def milliseconds(self, *, rows: int, length: int, level: float) -> float:
        """The time of one batch."""


@dataclass(frozen=True)
class Waiting:
    """A row in the queue, as a policy sees it."""

    number: int  # in the order of arrival
    tier: str
    length: int  # tokens, as padded
    deadline: float  # when its answer is due
    latest: float  # when it is due once that can't be kept any more
    highest: float  # levels that it may run at
    lowest: float
    alone: bool = False  # its last batch failed, so it shares none now
    request: int | None = None  # rows of one request have the same; it is answered with its last


@dataclass(frozen=True)
class Plan:
    """The next batch of a free worker: some rows of the queue, all at one level."""

    rows: tuple[int, ...]  # places in the queue
    level: float
    rung: int


@dataclass(frozen=True)
class Setting:
    """What a policy knows beside the queue: the ladder, and how long batches take here."""

    rungs: tuple[Mapping[str, float], ...]  # each a level per tier; they never rise
    levels: tuple[float, ...]
    forecast: Forecasting
    workers: int = 1
    max_batch: int = 32
    max_wait: float = 5.0
    max_tokens: int = 200_000
    max_rows: int = 20_000
    rule: Rule = field(default_factory=Rule)
    ratio: float = 1.0  # how much slower than forecast batches were of late
    reserved: float = RESERVED  # the share of the time that rows could wait, left for others
    margin: float = 0.0  # 19 of 20 batches stay within the forecast and this share of it
    reply: float = 0.0  # seconds from the end of a batch to the client

    def seconds(self, rows: int, length: int, level: float) -> float:
        """How long a batch takes, as things are; few take longer."""
        return self.forecast_seconds(rows, length, level) * self.ratio * (1.0 + self.margin)

    def forecast_seconds(self, rows: int, length: int, level: float) -> float:
        """How long a batch takes by the forecast alone."""
        key = rows, length, level
        if key not in self._known:
            found = self.forecast.milliseconds(rows=rows, length=length, level=level)
            self._known[key] = found / 1000.0
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[int, int, float], float]:
        return {}  # a memory of what never changes

    def with_workers(self, workers: int) -> Setting:
        """The same for so many workers."""
        return replace(self, workers=workers)

    def corrected(self, ratio: float, *, reserved: float = RESERVED) -> Setting:
        """The same, batches being so much slower, and so much being left for others."""
        other = replace(self, ratio=ratio, reserved=reserved)
        other.__dict__["_known"] = self._known
        return other


def padded(length: int, longest: int) -> int:
    """The length that a row is padded to."""
    return min(-(-length // BUCKET) * BUCKET, max(longest, length))


def highest_in_time(
    terms: Terms, lengths: Sequence[int], setting: Setting, *, spent: float = 0.0
) -> float:
    """The highest level at which an idle server would answer the rows of a request in time.

    The lowest of its terms if none would. What the rows ask for is this: load may lower it, and
    their own target already has. They are counted as the policy counts them, one after the other,
    the last of them with the usual reserve.
    """
    left = terms.target_ms / 1000.0 - spent - setting.reply

    def fits(level: float) -> bool:
        times = [setting.seconds(1, length, level) for length in lengths]
        waits = (sum(times) - times[-1]) / setting.workers
        return waits <= (1.0 - RESERVED) * (left - times[-1]) + 1e-9 and max(times) <= left

    allowed = [level for level in setting.levels if terms.lowest <= level <= terms.highest]
    return max(filter(fits, allowed), default=terms.lowest)


def drain(row: Waiting, end: float) -> Waiting:
    """A row when the server is to end: the same plan then empties the queue in time."""
    return replace(row, deadline=min(row.deadline, end), latest=end)
