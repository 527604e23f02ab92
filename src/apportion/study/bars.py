"""Bars: how far the stages of a study are, on stderr, so that stdout stays data; else lines."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import TaskID
from rich.table import Table

from apportion.study.paper import TIMING, timing_of
from apportion.study.stages import Stage
from apportion.training.progress import Lines, Tick, facts_of, stage_bars


class Bars:
    """A watcher of `driver.run` that draws one bar per stage; where there is no terminal, lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars: dict[str, TaskID] = {}
        self.progress = stage_bars(console)
        self.lines = Lines(console)

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def started(self, stage: Stage, left: int) -> None:
        """A stage begins."""
        bar = self.progress.add_task(stage.label, total=None, facts="")
        self.bars[stage.key] = bar
        if not self.console.is_terminal:
            self.console.print(f"{stage.label}: started, {left} to do")

    def ticked(self, stage: Stage, tick: Tick) -> None:
        """A stage took a training step."""
        self._show(stage, tick.step, tick.steps, facts_of(tick))

    def timing(self, stage: Stage, done: int, of: int) -> None:
        """A stage's model is being timed."""
        self._show(stage, done, of, "timing")

    def finished(self, stage: Stage, seconds: float) -> None:
        """A stage's records are on disk."""
        self.progress.remove_task(self.bars.pop(stage.key))
        self.console.print(f"{stage.label}: done in {seconds:.0f} s")

    def _show(self, stage: Stage, done: int, of: int, facts: str) -> None:
        if stage.key in self.bars:  # a tick may come in after the stage's end
            self.progress.update(self.bars[stage.key], completed=done, total=of, facts=facts)
            self.lines.show(stage.label, f"{done:,} of {of:,}  {facts}", done, of)


class Overview:
    """A watcher of several runs: every table with what is done, running, to come, and time left.

    `tables` are the pieces of work that each one needs: the key of a stage, and `timing_of` it if
    its model is timed. `expected` is how many seconds a piece took elsewhere; what is not in there
    is taken to be as long as what has been run so far.
    """

    def __init__(
        self,
        console: Console,
        tables: Mapping[str, Collection[str]],
        done: Collection[str],
        expected: Mapping[str, float],
        jobs: int,
    ) -> None:
        self.console, self.tables, self.expected, self.jobs = console, tables, expected, jobs
        self.wanted = {piece for pieces in tables.values() for piece in pieces}
        self.done = set(done)
        self.began: dict[str, float] = {}
        self.took: list[float] = []
        self.bars = Bars(console)
        self.live = Live(console=console, get_renderable=self._render, refresh_per_second=2)

    def __enter__(self) -> Overview:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def started(self, stage: Stage, left: int) -> None:
        """A stage begins."""
        self.began[self._piece(stage)] = time.monotonic()
        self.bars.started(stage, left)

    def ticked(self, stage: Stage, tick: Tick) -> None:
        """A stage took a training step."""
        self.bars.ticked(stage, tick)

    def timing(self, stage: Stage, done: int, of: int) -> None:
        """A stage's model is being timed."""
        self.bars.timing(stage, done, of)

    def finished(self, stage: Stage, seconds: float) -> None:
        """A stage's records are on disk."""
        piece = self._piece(stage)
        self.took.append(seconds)
        self.began.pop(piece, None)
        self.done.add(piece)
        self.bars.finished(stage, seconds)
        if not self.console.is_terminal:
            self.console.print(self.summary(), highlight=False)

    def _piece(self, stage: Stage) -> str:
        """A stage that has its records already can only be under the clock now."""
        return timing_of(stage.key) if stage.key in self.done else stage.key

    def seconds_left(self) -> float | None:
        """How long what is left will take, if anything is known of how long things take."""
        usual = sum(self.took) / len(self.took) if self.took else None
        side_by_side = alone = 0.0
        for piece in self.wanted - self.done:
            whole = self.expected.get(piece, usual)
            if whole is None:
                return None
            began = self.began.get(piece)
            seconds = whole if began is None else max(0.0, whole - (time.monotonic() - began))
            if piece.startswith(TIMING):
                alone += seconds
            else:
                side_by_side += seconds
        return alone + side_by_side / self.jobs

    def summary(self) -> str:
        """How far it is, in a line."""
        done = f"{len(self.wanted & self.done)} of {len(self.wanted)} pieces"
        left = self.seconds_left()
        return f"{done}, about {max(1, round(left / 60))} min left" if left else done

    def _render(self) -> Group:
        table = Table("table", "", "pieces", box=None, pad_edge=False, header_style="dim")
        for name, keys in self.tables.items():
            done = sum(key in self.done for key in keys)
            state, style = "to come", "dim"
            if done == len(keys):
                state, style = "done", "green"
            elif any(key in self.began for key in keys):
                state, style = "running", "bold"
            table.add_row(name, state, f"{done} / {len(keys)}", style=style)
        return Group(table, self.summary(), self.bars.progress.get_renderable())
