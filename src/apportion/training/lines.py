"""How far some work is, where there is no terminal to draw on: a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

EVERY = 30.0  # seconds between two lines of one piece of work


@dataclass
class _Pace:
    """When a piece of work was first heard of and how far it was, and when it was last shown."""

    began: float
    first: int
    last: int
    shown: float


class Lines:
    """Prints how far each piece of work is every `EVERY` seconds; on a terminal, nothing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._paces: dict[str, _Pace] = {}

    def show(self, name: str, facts: str, done: int, of: int | None) -> None:
        """Takes note of how far a piece of work is; the time left is by its pace so far."""
        if self.console.is_terminal:
            return
        now = time.monotonic()
        pace = self._paces.get(name)
        if pace is None or done < pace.last:  # its next part, with another pace
            shown = pace.shown if pace else now
            pace = self._paces[name] = _Pace(now, done, done, shown)
        pace.last = done
        if now - pace.shown < EVERY:
            return
        pace.shown = now
        left = ""
        if of and done > pace.first:
            seconds = (of - done) * (now - pace.began) / (done - pace.first)
            left = f", about {_duration(seconds)} left"
        line = f"{name}: {facts}{left}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def working_bar(name: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar for one piece of work; where there is no terminal, lines. It takes done and total."""
    from rich.progress import Progress

    lines = Lines(console)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(name, total=None)

        def show(done: int, of: int) -> None:
            progress.update(bar, completed=done, total=of)
            lines.show(name, f"{done:,} of {of:,}", done, of)

        yield show
