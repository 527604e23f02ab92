"""Protocols: which rows the models of an experiment are measured on, and how they are timed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from apportion.data.sources import read_source
from apportion.data.task import SPLITS, Task, TaskSpec
from apportion.data.text import Text, draw, encode_rows, facts_of
from apportion.method.units import check_budget
from apportion.serving.bench.timing import TIMED_FORMS


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


@dataclass(frozen=True)
class MeasuredRows:
    """The test rows that models are measured on, where those are not the task's own.

    All of the test file, or so many of it. With a seed they are the same whatever the seed of the
    data; without, each seed of the data draws its own. A study that chooses among recipes takes the
    validation rows: test rows are for what was chosen.
    """

    rows: int | str  # a number, "all" or "validation"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.rows not in ("all", "validation") and (isinstance(self.rows, str) or self.rows < 2):
            raise ValueError(
                f'test_rows are two or more texts, "all" or "validation", not {self.rows!r}'
            )
        if self.seed is not None and (isinstance(self.rows, str) or self.seed < 0):
            raise ValueError(
                "test_seed, 0 or more, draws a number of test_rows, "
                f"not {self.rows} by seed {self.seed}"
            )

    @property
    def same_for_all(self) -> bool:
        """Whether every seed of the data is measured on the same rows."""
        return self.rows == "all" or self.seed is not None

    def identity(self) -> dict[str, Any]:
        """What decides the rows, beside the data: part of the hash of what is measured."""
        return {"rows": self.rows} | ({} if self.seed is None else {"test_seed": self.seed})

    def describe(self) -> str:
        """The rows in a few words."""
        rows = self.rows if isinstance(self.rows, str) else f"{self.rows:,}"
        return f"{rows}, the same for every seed" if self.same_for_all else rows

    def of(self, spec: Text, task: Task) -> Task:
        """The task with these test rows; what was trained on stays as it is."""
        assert task.words is not None
        if self.rows == "validation":
            return replace(task, test=task.validation)
        source = read_source(spec.folder or spec.data, spec.text, spec.label)
        if source.test is None:
            raise ValueError(
                "test_rows needs data with a test file of its own: other test rows "
                "would be other training rows"
            )
        size = None if isinstance(self.rows, str) else self.rows
        # A seed also decides the order of the rows, so all of them have a fixed one, too.
        drawn_by = self.seed or 0 if self.same_for_all else spec.seed
        bare = replace(spec, unlabelled=None, unlabelled_from=None, unlabelled_digest=None)
        rows = draw(replace(bare, test=size, seed=drawn_by), source).rows["test"]
        test = encode_rows(rows, task.classes, words=task.words, length=task.length)
        wider = replace(task, test=test)
        splits = {name: wider.split(name) for name in SPLITS}
        facts = facts_of(splits, task.classes, task.words)
        return replace(wider, facts={**task.facts, **facts})
