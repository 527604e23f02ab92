"""Protocols: how the models of an experiment are timed."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.data.task import TaskSpec
from apportion.data.text import Text
from apportion.method.units import check_budget
from apportion.serving.timing import TIMED_FORMS


@dataclass(frozen=True)
class Timing:
    """How a model is timed; the defaults are the paper's for its own encoder.

    Texts are padded to the whole length as the paper has it, grouped by length as people would
    run it and, if asked for, taken one at a time, whole or their first tokens.
    """

    budgets: tuple[float, ...] | None = None  # those of the tables, if not all of them
    batch: int = 64
    rows: int = 2000  # of texts; where rows are all alike, one batch will do
    repeats: int | None = None  # 5 over all rows of texts, or 41 of the one batch
    warmup: int | None = None  # rounds before those: 1 of texts, or 3 of the one batch
    single: bool = False
    short: int | None = None  # also single rows of so many tokens
    forms: tuple[str, ...] | None = None  # which to time; all of them, of texts all but "hard"
    predictions: bool = True  # also how much of the bare model's throughput `predict` keeps

    def __post_init__(self) -> None:
        for budget in self.budgets or ():
            check_budget(budget)
        for name, least in (("batch", 1), ("rows", 1), ("repeats", 5), ("warmup", 0), ("short", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"[timing] {name} must be at least {least}, not {value}")
        unknown = sorted(set(self.forms or ()) - set(TIMED_FORMS))
        if unknown:
            raise ValueError(
                f"[timing] forms are of {', '.join(TIMED_FORMS)}, not {', '.join(unknown)}"
            )

    def protocols(self, task: TaskSpec) -> tuple[str | None, ...]:
        """How a task's rows are put together for a call; where all are alike, there is one way."""
        if not isinstance(task, Text):
            return (None,)
        asked = (("single", self.single), ("short", self.short))
        return ("padded", "grouped", *(name for name, wanted in asked if wanted))
