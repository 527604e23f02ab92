"""Progress on a terminal: one bar a running stage, on stderr, so that stdout stays data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def training_bar(console: Console | None = None) -> Iterator[Callable[[Tick], None]]:
    """A bar for one call of `fit`: `with training_bar() as bar: fit(…, progress=bar)`."""
    with _bars(console or Console(stderr=True)) as progress:
        bar = progress.add_task("", total=None, facts="")

        def show(tick: Tick) -> None:
            progress.update(
                bar,
                description=tick.recipe,
                completed=tick.step,
                total=tick.steps,
                facts=_facts(tick),
            )

        yield show


class Bars:
    """A watcher of `driver.run` that draws a bar a stage; where there is no terminal, lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars: dict[str, TaskID] = {}
        self.progress = _bars(console)

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
        self._show(stage, tick.step, tick.steps, _facts(tick))

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


def _facts(tick: Tick) -> str:
    facts = f"epoch {tick.epoch}/{tick.epochs}  loss {tick.loss:.4f}  cost {tick.cost:.3f}"
    return facts if tick.accuracy is None else f"{facts}  accuracy {100 * tick.accuracy:.1f} %"


def _bars(console: Console) -> Progress:
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
