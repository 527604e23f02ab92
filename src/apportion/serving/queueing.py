"""The queue: rows from their admission to their one end. All that changes stands here, locked.

No threads of its own: workers call `take`, then `finish` or `fail`. Every row that is admitted ends
once: answered, failed, cancelled or timed out.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.tokenizer import Tokenizer
from apportion.serving.policy import (
    Load,
    Setting,
    Waiting,
    admit,
    drain,
    highest_in_time,
    padded,
)
from apportion.serving.rival_policies import NAMED
from apportion.serving.terms import Config, Refusal, Terms

ANSWERED, FAILED, CANCELLED, TIMED_OUT = "answered", "failed", "cancelled", "timed out"
_TRIES = 2  # a batch that failed is repeated once, each row alone
_SLOWER = (0.5, 8.0)  # bounds of how far the forecast is corrected


@dataclass(frozen=True, eq=False)
class Model:
    """What answers: a runtime, the terms that it is offered at, what the policy knows of it."""

    runtime: Callable[..., NDArray[np.float32]]
    levels: tuple[float, ...]
    costs: tuple[float, ...]
    classes: tuple[str, ...]
    tokenizer: Tokenizer
    identity: Mapping[str, str]
    config: Config
    setting: Setting

    def cost(self, tokens: int, level: float) -> float:
        """What a row costs: its tokens, times the share of the compute that a level pays for."""
        return tokens * self.costs[self.levels.index(level)]


@dataclass(eq=False)
class Row:
    """One text of a request, and what became of it."""

    request: Request
    ids: list[int]
    facts: Waiting
    asked: float  # the level that an idle server would have run it at
    outcome: str | None = None
    tries: int = 0
    probabilities: NDArray[Any] | None = None
    level: float = 0.0
    rung: int = 0
    batch: int = 0
    started: float = 0.0
    ended: float = 0.0

    @property
    def cost(self) -> float:
        """What its answer cost."""
        return self.request.model.cost(len(self.ids), self.level)


@dataclass(eq=False)
class Request:
    """Texts that were admitted together; `done` is called once, when all of them have ended."""

    model: Model
    terms: Terms
    received: float
    admitted: float
    done: Callable[[Request], None]
    rows: list[Row] = field(default_factory=list)
    open: int = 0
    error: BaseException | None = None

    @property
    def outcome(self) -> str:
        """Answered if all of it was; or else what came between."""
        others = [row.outcome for row in self.rows if row.outcome != ANSWERED]
        for outcome in (FAILED, TIMED_OUT, CANCELLED):
            if outcome in others:
                return outcome
        return ANSWERED


@dataclass(eq=False)
class Batch:
    """Rows that run together, at one level of one model."""

    model: Model
    rows: list[Row]
    level: float
    rung: int
    started: float
    predicted: float  # seconds, by the forecast

    def inputs(self) -> dict[str, NDArray[Any]]:
        """Ids and mask, padded to the bucket of the longest row."""
        width = max(row.facts.length for row in self.rows)
        return self.model.tokenizer.pad_arrays([row.ids for row in self.rows], width)


class Queue:
    """Rows that wait and batches that run. Any thread may call; `clock` gives seconds."""

    def __init__(self, model: Model, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.model, self.clock = model, clock
        self.changed = threading.Condition()
        self.counts: Counter[tuple[str, str]] = Counter()  # of rows, by tier and outcome
        self.costs: defaultdict[str, float] = defaultdict(float)  # by tier
        self.met: Counter[str] = Counter()  # rows answered by their deadline, by tier
        self.ratio = 1.0  # of late, batches took so many times their forecast
        self.rung = 0
        self.end: float | None = None  # of the grace period, once it drains
        self._waiting: dict[int, Row] = {}
        self._running: set[Batch] = set()
        self._load = Load()
        self._number = 0

    def submit(
        self,
        encoded: Sequence[list[int]],
        terms: Terms,
        *,
        model: Model,
        received: float,
        done: Callable[[Request], None],
    ) -> Request:
        """Admits the rows of a request, all of them or none (a `Refusal`)."""
        with self.changed:
            if self.end is not None:
                raise Refusal("draining", "the server is about to end", retry_after_ms=1000)
            now = self.clock()
            request = Request(model, terms, received, now, done)
            for ids in encoded:
                request.rows.append(self._row(request, ids, now))
            facts = [row.facts for row in request.rows]
            self._load = admit(facts, self._load, self._setting(model), busy=self._busy(now))
            self._number += len(facts)
            for row in request.rows:
                self._waiting[row.facts.number] = row
            request.open = len(request.rows)
            self.changed.notify(len(facts))
            return request

    def _row(self, request: Request, ids: list[int], now: float) -> Row:
        terms, model = request.terms, request.model
        length = padded(len(ids), model.tokenizer.length)
        setting = self._setting(model)
        asked = highest_in_time(terms, length, setting, spent=now - request.received)
        due = request.received + terms.target_ms / 1000.0
        facts = Waiting(
            number=self._number + len(request.rows),
            tier=terms.tier,
            length=length,
            deadline=due,
            latest=max(due, request.received + setting.max_wait),
            highest=asked,
            lowest=terms.lowest,
        )
        return Row(request, ids, facts, asked)

    def cancel(self, request: Request, outcome: str = CANCELLED) -> None:
        """Takes what is left of a request out of the queue; what runs is not waited for."""
        with self.changed:
            self._end_all(request, outcome)

    def take(self) -> Batch | None:
        """The next batch, if rows wait. Its rows are of one model; those of an old one go first."""
        with self.changed:
            now = self.clock()
            self._expire(now)
            if not self._waiting:
                self.rung = 0
                return None
            model = next(iter(self._waiting.values())).request.model
            rows = [row for row in self._waiting.values() if row.request.model is model]
            setting = self._setting(model)
            policy = NAMED[setting.rule.name]
            plan = policy(now, [row.facts for row in rows], self._busy(now, but=1), setting)
            assert plan is not None
            chosen = [rows[place] for place in plan.rows]
            for row in chosen:
                self._leave(row)
                row.tries += 1
                row.level, row.rung, row.started = plan.level, plan.rung, now
                row.batch = len(chosen)
            self.rung = plan.rung
            length = max(row.facts.length for row in chosen)
            predicted = setting.forecast_seconds(len(chosen), length, plan.level)
            batch = Batch(model, chosen, plan.level, plan.rung, now, predicted)
            self._running.add(batch)
            return batch

    def finish(self, batch: Batch, probabilities: NDArray[Any]) -> None:
        """Hands each row of a batch its answer, unless it ended in the meantime."""
        with self.changed:
            now = self.clock()
            self._running.discard(batch)
            low, high = _SLOWER
            took = min((now - batch.started) / batch.predicted, high)  # one stall is no trend
            self.ratio = min(max(0.9 * self.ratio + 0.1 * took, low), high)
            for row, answer in zip(batch.rows, probabilities, strict=True):
                if row.outcome is None:
                    row.probabilities = answer
                    self._end(row, ANSWERED, now)

    def fail(self, batch: Batch, error: BaseException) -> None:
        """After an error: each row of the batch runs once more, alone; then it has failed."""
        with self.changed:
            now = self.clock()
            self._running.discard(batch)
            for row in batch.rows:
                if row.outcome is not None:
                    continue
                if row.tries < _TRIES:
                    row.facts = replace(row.facts, alone=True)
                    self._waiting[row.facts.number] = row
                    self._load = self._load.plus(row.facts, row.request.model.setting)
                else:
                    row.request.error = error
                    self._end(row, FAILED, now)
                    self._end_all(row.request, CANCELLED)
            self.changed.notify(len(batch.rows))

    def swap(self, model: Model) -> None:
        """Requests from now on are another model's; those that wait keep theirs."""
        if model.classes != self.model.classes:
            raise ValueError(
                f"the new model answers {', '.join(model.classes[:4])}, and the one that runs "
                f"{', '.join(self.model.classes[:4])}: start another server for other labels"
            )
        with self.changed:
            self.model, self.ratio = model, 1.0

    def drain(self, grace: float) -> None:
        """Admits nothing more; what waits is planned to be answered within `grace` seconds."""
        with self.changed:
            self.end = self.clock() + grace
            for row in self._waiting.values():
                row.facts = drain(row.facts, self.end)
            self.changed.notify_all()

    def has_rows(self) -> bool:
        """Whether rows wait."""
        return bool(self._waiting)

    def is_empty(self) -> bool:
        """Whether nothing waits and nothing runs."""
        with self.changed:
            return not self._waiting and not self._running

    def give_up(self) -> None:
        """Ends whatever waits or runs: the grace period is over."""
        with self.changed:
            for row in [*self._waiting.values(), *(r for b in self._running for r in b.rows)]:
                self._end_all(row.request, CANCELLED)

    def state(self) -> dict[str, float]:
        """How things are: rows and tokens that wait, the wait, the rung, the oldest batch."""
        with self.changed:
            now = self.clock()
            wait = self._load.wait(self._setting(self.model), self._busy(now))
            oldest = max((now - batch.started for batch in self._running), default=0.0)
            return {
                "rows": self._load.rows,
                "tokens": self._load.tokens,
                "wait": wait,
                "rung": self.rung,
                "ratio": self.ratio,
                "oldest_batch": oldest,
            }

    def _setting(self, model: Model) -> Setting:
        return model.setting.corrected(self.ratio)

    def _busy(self, now: float, but: int = 0) -> list[float]:
        """How long the workers are still taken; without the one that asks."""
        left = [
            max(batch.started + self.ratio * batch.predicted - now, 1e-6) for batch in self._running
        ]
        return left + [0.0] * (self.model.setting.workers - but - len(left))

    def _expire(self, now: float) -> None:
        for row in list(self._waiting.values()):
            if now >= row.request.received + row.request.terms.timeout_ms / 1000.0:
                self._end_all(row.request, TIMED_OUT)

    def _end_all(self, request: Request, outcome: str) -> None:
        now = self.clock()
        for row in request.rows:
            if row.outcome is None:
                self._end(row, outcome, now)

    def _end(self, row: Row, outcome: str, now: float) -> None:
        assert row.outcome is None
        self._leave(row)
        row.outcome, row.ended = outcome, now
        request = row.request
        self.counts[request.terms.tier, outcome] += 1
        if outcome == ANSWERED:
            self.costs[request.terms.tier] += row.cost
            self.met[request.terms.tier] += now <= self._due(row)
        request.open -= 1
        if not request.open:
            request.done(request)

    def _due(self, row: Row) -> float:
        return row.request.received + row.request.terms.target_ms / 1000.0

    def _leave(self, row: Row) -> None:
        if self._waiting.pop(row.facts.number, None) is not None:
            self._load = self._load.plus(row.facts, row.request.model.setting, -1)
