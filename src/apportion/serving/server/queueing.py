"""The queue: rows from their admission to their one end. All that changes stands here, locked.

No threads of its own: workers call `take`, then `finish` or `fail`. Every row that is admitted ends
once: answered, failed, cancelled or timed out.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from apportion.serving.server.admission import Load, admit
from apportion.serving.server.admitted import (
    ANSWERED,
    CANCELLED,
    FAILED,
    TIMED_OUT,
    Batch,
    Model,
    Request,
    Row,
)
from apportion.serving.server.promise import LOAD, Audit, Promise, Stage, kept_promise
from apportion.serving.server.reserve import Reserve
from apportion.serving.server.rival_policies import NAMED
from apportion.serving.server.setting import Setting, Waiting, drain, highest_in_time, padded
from apportion.serving.server.terms import Refusal, Terms

_TRIES = 2  # a batch that failed is repeated once, each row alone
_SLOWER = (0.5, 8.0)  # bounds of how far the forecast is corrected


class Queue:
    """Rows that wait and batches that run. Any thread may call; `clock` gives seconds."""

    def __init__(self, model: Model, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.model, self.clock = model, clock
        self.changed = threading.Condition()
        self.counts: Counter[tuple[str, str]] = Counter()  # of rows, by tier and outcome
        self.costs: defaultdict[str, float] = defaultdict(float)  # by tier
        self.met: Counter[str] = Counter()  # rows answered by their deadline, by tier
        self.spent = 0.0  # seconds of all batches
        self.wasted = 0.0  # of them, on rows whose clients had gone
        self.ratio = 1.0  # of late, batches took so many times their forecast
        self.reserve = Reserve()
        self.rung = 0
        self.end: float | None = None  # of the grace period, once it drains
        self.on_batch: Callable[[Batch, float], object] = lambda batch, seconds: None
        self._waiting: dict[int, Row] = {}
        self._running: set[Batch] = set()
        self._load = Load()
        self._number = 0
        self._next_expiry = math.inf  # nobody who waits gives up before

    def submit(
        self,
        encoded: Sequence[list[int]],
        terms: Terms,
        *,
        model: Model,
        received: float,
        done: Callable[[Request], None],
        number: str = "",
    ) -> Request:
        """Admits the rows of a request, all of them or none (a `Refusal`)."""
        with self.changed:
            if self.end is not None:
                raise Refusal("draining", "the server is about to end", retry_after_ms=1000)
            now = self.clock()
            request = Request(model, terms, received, now, done, number)
            stages = model.stages_of(terms)
            asked = stages[0][0] if stages else self._asked(request, encoded, now)
            for ids in encoded:
                request.rows.append(self._row(request, ids, asked, stages))
            facts = [row.facts for row in request.rows]
            self._load = admit(facts, self._load, self._setting(model), busy=self._busy(now))
            self._number += len(facts)
            for row in request.rows:
                self._waiting[row.facts.number] = row
            request.open = len(request.rows)
            self._next_expiry = min(self._next_expiry, request.expiry)
            self.changed.notify(len(facts))
            return request

    def _asked(self, request: Request, encoded: Sequence[list[int]], now: float) -> float:
        """The level that an idle server would run the rows of a request at."""
        longest = request.model.tokenizer.length
        lengths = [padded(len(ids), longest) for ids in encoded]
        setting, spent = self._setting(request.model), now - request.received
        return highest_in_time(request.terms, lengths, setting, spent=spent)

    def _row(
        self, request: Request, ids: list[int], asked: float, stages: tuple[Stage, ...]
    ) -> Row:
        terms, setting = request.terms, request.model.setting
        due = request.received + terms.target_ms / 1000.0
        facts = Waiting(
            number=self._number + len(request.rows),
            tier=terms.tier,
            length=padded(len(ids), request.model.tokenizer.length),
            deadline=due - setting.reply,
            latest=max(due, request.received + setting.max_wait),
            highest=asked,
            lowest=min(terms.lowest, asked),
            request=self._number,
        )
        return Row(request, ids, facts, asked, stages, certified=True if stages else None)

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
                if row.certified and self._is_overloaded(row, setting):
                    row.certified = False
            self.rung = plan.rung
            length = max(row.facts.length for row in chosen)
            predicted = setting.forecast_seconds(len(chosen), length, plan.level)
            batch = Batch(model, chosen, plan.level, plan.rung, now, predicted)
            self._running.add(batch)
            return batch

    def _is_overloaded(self, row: Row, setting: Setting) -> bool:
        """Whether load takes the promise from a row that is about to be asked at first.

        It does if the row runs below its cascade's level, or if its tier is so low on the ladder
        that nothing could go on. What the row is like has no part in it, or the promise would be
        kept for easy rows alone.
        """
        if row.probabilities is not None:
            return False
        left = setting.rungs[row.rung].get(row.request.terms.tier, 1.0)
        return row.level < row.stages[0][0] or (len(row.stages) > 1 and left <= row.level)

    def finish(self, batch: Batch, probabilities: NDArray[Any]) -> None:
        """Hands each row of a batch its answer, unless it ended in the meantime."""
        with self.changed:
            now = self.clock()
            self._running.discard(batch)
            low, high = _SLOWER
            seconds = now - batch.started
            self.spent += seconds
            self.on_batch(batch, seconds)
            gone = sum(row.outcome is not None for row in batch.rows)
            self.wasted += seconds * gone / max(len(batch.rows), 1)
            took = min(seconds / batch.predicted, high)  # one stall is no trend
            self.ratio = min(max(0.9 * self.ratio + 0.1 * took, low), high)
            if batch.audit is not None and isinstance(batch.model.promise, Promise):
                differs = int(probabilities[0].argmax()) != batch.audit.label
                batch.model.promise.drift.observe(differs)
            for row, answer in zip(batch.rows, probabilities[: len(batch.rows)], strict=True):
                if row.outcome is None and row.told(answer, now):
                    self._end(row, ANSWERED, now)
                elif row.outcome is None:
                    self._wait_again(row)

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
                    self._wait_again(row)
                else:
                    row.request.error = error
                    self._end(row, FAILED, now)
                    self._end_all(row.request, CANCELLED)

    def take_audit(self) -> Batch | None:
        """An answer that the whole model is asked about, if nobody waits for one."""
        with self.changed:
            promise = self.model.promise
            if self._waiting or self.end is not None or not isinstance(promise, Promise):
                return None
            audit = promise.next_audit()
            if audit is None:
                return None
            model, whole = audit.model, audit.model.levels[-1]
            length = padded(len(audit.ids), model.tokenizer.length)
            predicted = model.setting.forecast_seconds(1, length, whole)
            batch = Batch(model, [], whole, 0, self.clock(), predicted, audit)
            self._running.add(batch)
            return batch

    def swap(self, model: Model) -> None:
        """Requests from now on are another model's; those that wait keep theirs."""
        if model.classes != self.model.classes:
            raise ValueError(
                f"the new model answers {', '.join(model.classes[:4])}, and the one that runs "
                f"{', '.join(self.model.classes[:4])}: start another server for other labels"
            )
        with self.changed:
            promise = kept_promise(self.model.promise, model.promise)
            self.model, self.ratio = replace(model, promise=promise), 1.0

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

    def promised(self) -> dict[str, Any]:
        """What the certificate promises and how its audits do; empty where there is none."""
        with self.changed:
            promise = self.model.promise
            return promise.state() if isinstance(promise, Promise) else {}

    def _setting(self, model: Model) -> Setting:
        return model.setting.corrected(self.ratio, reserved=self.reserve.share)

    def _busy(self, now: float, but: int = 0) -> list[float]:
        """How long the workers are still taken; without the one that asks."""
        left = [
            max(batch.started + self.ratio * batch.predicted - now, 1e-6) for batch in self._running
        ]
        return left + [0.0] * (self.model.setting.workers - but - len(left))

    def _expire(self, now: float) -> None:
        if now < self._next_expiry:  # a queue may be long, and is looked at for every batch
            return
        for row in list(self._waiting.values()):
            if now >= row.request.expiry:
                self._end_all(row.request, TIMED_OUT)
        left = (row.request.expiry for row in self._waiting.values())
        self._next_expiry = min(left, default=math.inf)

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
            met = now <= self._due(row)
            self.met[request.terms.tier] += met
            self._learn(row, met)
            self._note_promise(row)
        request.open -= 1
        if not request.open:
            request.done(request)

    def _learn(self, row: Row, met: bool) -> None:
        """Leaves more for others where rows come late, and less where they do not.

        Nothing is learned from a target that nobody could have met.
        """
        facts, terms, rows = row.facts, row.request.terms, len(row.request.rows)
        setting = self._setting(row.request.model)
        alone = rows * setting.seconds(1, facts.length, terms.lowest) / setting.workers
        if alone <= terms.target_ms / 1000.0:
            self.reserve.observe(met)

    def _note_promise(self, row: Row) -> None:
        model = row.request.model
        if not isinstance(model.promise, Promise) or row.certified is None:
            return
        if not row.certified:
            model.promise.without[LOAD] += 1
            return
        assert row.probabilities is not None
        model.promise.ends[row.level] += 1
        place = row.facts.number - row.request.rows[0].facts.number
        label, whole = int(row.probabilities.argmax()), row.level == model.levels[-1]
        model.promise.draw(f"{row.request.number}/{place}", Audit(row.ids, label, whole, model))

    def _wait_again(self, row: Row) -> None:
        if self.end is not None:
            row.facts = drain(row.facts, self.end)
        self._waiting[row.facts.number] = row
        self._next_expiry = min(self._next_expiry, row.request.expiry)
        self._load = self._load.plus(row.facts, row.request.model.setting)
        self.changed.notify()

    def _due(self, row: Row) -> float:
        return row.request.received + row.request.terms.target_ms / 1000.0

    def _leave(self, row: Row) -> None:
        if self._waiting.pop(row.facts.number, None) is not None:
            self._load = self._load.plus(row.facts, row.request.model.setting, -1)
