"""The reserve: how much of the time that rows could wait is left for those that come next.

A machine that others share, or bursts that nobody foresaw, make rows late. Each late row raises the
reserve by a step, and each that is in time lowers it so much less that it rests where as many are
late as may be. Pure: no clock, no threads.
"""

from __future__ import annotations

from apportion.serving.server.setting import RESERVED

_MAY_BE_LATE, _STEP, _MOST = 0.01, 0.01, 0.95


class Reserve:
    """A share of time that follows what becomes of rows."""

    def __init__(self) -> None:
        self.share = RESERVED

    def observe(self, met: bool) -> None:
        """A row was answered, by its deadline or not."""
        step = -_STEP * _MAY_BE_LATE if met else _STEP * (1.0 - _MAY_BE_LATE)
        self.share = min(max(self.share + step, RESERVED), _MOST)
