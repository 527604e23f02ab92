"""Admission: whether the queue has room for a request. Pure, as policies are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apportion.serving.server.setting import Setting, Waiting
from apportion.serving.server.terms import Refusal


@dataclass(frozen=True)
class Load:
    """What waits, summed up."""

    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0  # with every row alone and at its lowest level, as forecast

    def plus(self, row: Waiting, setting: Setting, sign: int = 1) -> Load:
        """With a row more, or one less."""
        seconds = setting.forecast_seconds(1, row.length, row.lowest)
        return Load(
            self.rows + sign,
            self.tokens + sign * row.length,
            self.seconds + sign * seconds if self.rows + sign else 0.0,
        )

    def wait(self, setting: Setting, busy: Sequence[float] = ()) -> float:
        """How long all of it takes, in seconds."""
        return (sum(busy) + setting.ratio * self.seconds) / setting.workers


def admit(
    rows: Sequence[Waiting], load: Load, setting: Setting, *, busy: Sequence[float] = ()
) -> Load:
    """The load with some more rows; where it has no place for all of them, none are admitted."""
    own = Load()
    for row in rows:
        own, load = own.plus(row, setting), load.plus(row, setting)
    takes = own.seconds / setting.workers
    if own.tokens > setting.max_tokens or own.rows > setting.max_rows or takes > setting.max_wait:
        raise Refusal(  # no queue is so empty that it would have room
            "too-large",
            f"{own.rows} texts of {own.tokens} tokens, which take {takes:.1f} s, are more than the "
            f"queue ever holds: {setting.max_rows} texts, {setting.max_tokens} tokens, "
            f"{setting.max_wait:g} s",
        )
    wait = load.wait(setting, busy)
    if load.tokens > setting.max_tokens:
        limit = f"{load.tokens} tokens would wait, and the limit is {setting.max_tokens}"
    elif load.rows > setting.max_rows:
        limit = f"{load.rows} rows would wait, and the limit is {setting.max_rows}"
    elif wait > setting.max_wait:
        limit = f"the wait would be {wait:.1f} s, and the limit is {setting.max_wait:g} s"
    else:
        return load
    # After that time the queue has room again, if nobody else comes.
    retry = max(wait - setting.max_wait, 0.1 * wait, 0.05)
    raise Refusal("queue-full", f"the queue is full: {limit}", retry_after_ms=round(1000 * retry))
