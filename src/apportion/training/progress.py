"""Progress: how far some work is, as a bar on stderr or, where there is no terminal, as lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

EVERY = 30.0  # seconds between two lines of one piece of work


@dataclass(frozen=True)
class Tick:
    """What a progress bar shows after a step."""

    recipe: str
    step: int
    steps: int
    epoch: int = 1
    epochs: int = 1
    loss: float | None = None  # none where nothing is trained
    cost: float = 1.0
    accuracy: float | None = None  # on validation, after the last finished epoch


def telling(progress: Callable[[Tick], None] | None) -> Callable[[str, int, int], None]:
    """A callback for other work than training: it takes what it is, what is done, and of how much.

    `partial(telling(progress), "scoring")` is one for a single piece of work.
    """
    return lambda what, done, of: progress(Tick(what, done, of)) if progress else None


@contextmanager
def training_bar(console: Console | None = None) -> Iterator[Callable[[Tick], None]]:
    """A bar for one call of `fit`: `with training_bar() as bar: fit(…, progress=bar)`.

    Where there is no terminal, a line every half minute.
    """
    console = console or Console(stderr=True)
    lines = Lines(console)
    with stage_bars(console) as progress:
        bar = progress.add_task("", total=None, facts="")

        def show(tick: Tick) -> None:
            progress.update(
                bar,
                description=tick.recipe,
                completed=tick.step,
                total=tick.steps,
                facts=facts_of(tick),
            )
            lines.show(tick.recipe, _steps(tick), tick.step, tick.steps)

        yield show


def facts_of(tick: Tick) -> str:
    """The facts beside a bar: epoch, loss, cost and accuracy."""
    if tick.loss is None:
        return tick.recipe
    facts = f"epoch {tick.epoch}/{tick.epochs}  loss {tick.loss:.4f}  cost {tick.cost:.3f}"
    return facts if tick.accuracy is None else f"{facts}  accuracy {100 * tick.accuracy:.1f} %"


def _steps(tick: Tick) -> str:
    return f"{tick.step:,} of {tick.steps:,}  {facts_of(tick)}"


def stage_bars(console: Console) -> Progress:
    """Bars with room for facts; none are drawn where there is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


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
    lines = Lines(console)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(name, total=None)

        def show(done: int, of: int) -> None:
            progress.update(bar, completed=done, total=of)
            lines.show(name, f"{done:,} of {of:,}", done, of)

        yield show
