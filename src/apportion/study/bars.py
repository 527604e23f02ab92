"""Bars: how far the stages of a study are, on stderr, so that stdout stays data; else lines."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress import TaskID
from rich.table import Table

from apportion.study.driver.work import Piece, Work
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

    def __exit__(self, *error: object) -> None:
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


class Overview(Bars):
    """A watcher of `reproduce`: every table with what is done, running, to come, and time left.

    A piece of work that took no known time elsewhere is expected to take as long as those that
    have been run so far.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.work = Work({})
        self.wanted: set[Piece] = set()
        self.done: set[Piece] = set()
        self.began: dict[Piece, float] = {}
        self.took: list[float] = []
        self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=2)

    def __enter__(self) -> Overview:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def planned(self, work: Work) -> None:
        """What there is to do, before any of it begins."""
        self.work, self.done = work, set(work.done)
        self.wanted = {piece for pieces in work.tables.values() for piece in pieces}

    def warned(self, message: str) -> None:
        """Something that people should know: a study is left out, or failed."""
        self.console.print(message, style="yellow", markup=False, highlight=False)

    def started(self, stage: Stage, left: int) -> None:
        """A stage begins."""
        self.began[self._piece(stage)] = time.monotonic()
        super().started(stage, left)

    def finished(self, stage: Stage, seconds: float) -> None:
        """A stage's records are on disk."""
        piece = self._piece(stage)
        self.took.append(seconds)
        self.began.pop(piece, None)
        self.done.add(piece)
        super().finished(stage, seconds)
        if not self.console.is_terminal:
            self.console.print(self.summary(), highlight=False)

    def _piece(self, stage: Stage) -> Piece:
        """A stage that has its records already can only be under the clock now."""
        return Piece(stage.key, timed=Piece(stage.key) in self.done)

    def seconds_left(self) -> float | None:
        """How long what is left will take, if anything is known of how long things take."""
        usual = sum(self.took) / len(self.took) if self.took else None
        side_by_side = alone = 0.0
        for piece in self.wanted - self.done:
            whole = self.work.expected.get(piece, usual)
            if whole is None:
                return None
            began = self.began.get(piece)
            seconds = whole if began is None else max(0.0, whole - (time.monotonic() - began))
            if piece.timed:
                alone += seconds
            else:
                side_by_side += seconds
        return alone + side_by_side / self.work.jobs

    def summary(self) -> str:
        """How far it is, in a line."""
        done = f"{len(self.wanted & self.done)} of {len(self.wanted)} pieces"
        left = self.seconds_left()
        return f"{done}, about {max(1, round(left / 60))} min left" if left else done

    def _render(self) -> Group:
        table = Table("table", "", "pieces", box=None, pad_edge=False, header_style="dim")
        for name, pieces in self.work.tables.items():
            done = sum(piece in self.done for piece in pieces)
            state, style = "to come", "dim"
            if done == len(pieces):
                state, style = "done", "green"
            elif any(piece in self.began for piece in pieces):
                state, style = "running", "bold"
            table.add_row(name, state, f"{done} / {len(pieces)}", style=style)
        return Group(table, self.summary(), self.progress.get_renderable())
