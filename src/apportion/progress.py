"""Progress on a terminal: one bar a running stage, on stderr, so that stdout stays data."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from apportion.stages import Stage
from apportion.training import Tick


class Bars:
    """A watcher of `experiment.run` that draws bars; where there is no terminal, lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars: dict[str, TaskID] = {}
        self.progress = Progress(
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
        facts = f"epoch {tick.epoch}/{tick.epochs}  loss {tick.loss:.4f}  cost {tick.cost:.3f}"
        if tick.accuracy is not None:
            facts += f"  validation {100 * tick.accuracy:.1f} %"
        self._show(stage, tick.step, tick.steps, facts)

    def timing(self, stage: Stage, done: int, of: int) -> None:
        """A stage's model is being timed."""
        self._show(stage, done, of, "timing")

    def finished(self, stage: Stage, seconds: float) -> None:
        """A stage's records are on disk."""
        self.progress.remove_task(self.bars.pop(stage.key))
        self.console.print(f"{stage.label}: done in {seconds:.0f} s")

    def _show(self, stage: Stage, done: int, of: int, facts: str) -> None:
        self.progress.update(self.bars[stage.key], completed=done, total=of, facts=facts)
