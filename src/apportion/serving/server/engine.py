"""The engine: threads around a queue. One encodes texts, the workers run batches of one model.

A short request that finds nobody else there is encoded by the thread that brings it.

Its workers may fail or die: their batch is repeated once, row by row, and another takes the place.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from apportion.serving.bench.calibration import calibrate
from apportion.serving.milliseconds.forecast import Forecast
from apportion.serving.runtime.prediction import softmax
from apportion.serving.runtime.session import Runtime
from apportion.serving.server.admitted import CANCELLED, Batch, Model, Request
from apportion.serving.server.promise import find_promise
from apportion.serving.server.queueing import Queue
from apportion.serving.server.rungs import build_ladder, usual_worth
from apportion.serving.server.setting import Setting
from apportion.serving.server.terms import Capacity, Config, Refusal, Terms

_STUCK = 60.0  # seconds that no batch should take
_PENDING = 50_000_000  # characters that may wait to be encoded
_AT_ONCE = 2000  # characters that take less time to encode than another thread to wake up
_MOST_WORKERS = 16
_PLANNED = 0.95  # of the grace period: the rest is for answers on their way
_REPLY = 0.002  # seconds for an answer to be written, sent and read, on one machine


class Ticket:
    """A request on its way: texts first, then rows in the queue, or a refusal."""

    def __init__(
        self,
        texts: Sequence[str],
        terms: Terms,
        model: Model,
        done: Callable[[Ticket], None],
        *,
        number: str = "",
        whole: bool = False,  # whether its texts may not be cut
    ) -> None:
        self.texts, self.terms, self.model, self.number = list(texts), terms, model, number
        self.whole = whole
        self.count = len(self.texts)
        self.size = self.count + sum(map(len, self.texts))
        self.received = 0.0
        self.request: Request | None = None
        self.refusal: Refusal | None = None
        self.encode_seconds = 0.0
        self.gone = False
        self._done = done

    def end(self, request: Request | None = None) -> None:
        """Tells whoever waits for it. A worker may be done before the queue has said who asked."""
        self.request = request or self.request
        self._done(self)


class ServingEngine:
    """Answers tickets until it is stopped: `start`, `ask`, `drain`, `stop`."""

    def __init__(self, model: Model, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.queue = Queue(model, clock=clock)
        self.deaths = 0
        self.closing = False  # nothing more is taken
        self._texts: SimpleQueue[Ticket | float | None] = SimpleQueue()
        self._pending = 0  # texts and characters that are not encoded yet
        self._lock = threading.Lock()
        self._workers: set[threading.Thread] = set()
        self._encoder: threading.Thread | None = None
        self._stopped = False

    def start(self) -> None:
        """Starts the threads."""
        self._encoder = threading.Thread(target=self._encode, name="encoder", daemon=True)
        self._encoder.start()
        for _ in range(self.queue.model.setting.workers):
            self._hire()

    def ask(self, ticket: Ticket) -> None:
        """Takes a ticket; it is told when all is done, from whichever thread did the last of it."""
        ticket.received = self.queue.clock()
        with self._lock:
            if self.closing:
                raise Refusal("draining", "the server is about to end", retry_after_ms=1000)
            if self._pending + ticket.size > _PENDING:
                raise Refusal(
                    "queue-full", "too many texts wait to be encoded", retry_after_ms=1000
                )
            alone = not self._pending and ticket.size <= _AT_ONCE
            self._pending += ticket.size
        if alone and not self.queue.has_rows():  # nobody is there to share a call with
            self._encode_for(ticket.model, [ticket])
        else:
            self._texts.put(ticket)

    def leave(self, ticket: Ticket, outcome: str = CANCELLED) -> None:
        """Nobody waits for a ticket any more."""
        with self._lock:
            ticket.gone = True
        if ticket.request is not None:
            self.queue.cancel(ticket.request, outcome)

    def swap(self, model: Model) -> None:
        """Requests from now on are another model's."""
        if model.setting.workers != self.queue.model.setting.workers:
            raise ValueError("the number of workers can't be changed while the server runs")
        self.queue.swap(model)

    def drain(self, grace: float) -> None:
        """Takes nothing more, and lowers budgets so that the queue is empty within the grace.

        Texts that were taken already are encoded first: the end stands in line behind them, and
        does not move meanwhile.
        """
        with self._lock:
            self.closing = True
        self._texts.put(self.queue.clock() + _PLANNED * grace)

    def is_idle(self) -> bool:
        """Whether everybody has had an answer."""
        with self._lock:
            pending = self._pending
        return not pending and self.queue.is_empty()

    def stop(self) -> None:
        """Ends the threads; whatever still waits is cancelled."""
        with self._lock:
            self.closing = True
        self._texts.put(None)  # behind the last ticket
        if self._encoder is not None:
            self._encoder.join(timeout=5.0)
        self._stopped = True
        self.queue.give_up()
        with self.queue.changed:
            self.queue.changed.notify_all()
        for worker in list(self._workers):
            worker.join(timeout=5.0)

    @property
    def workers_alive(self) -> int:
        """Threads that take batches."""
        return sum(thread.is_alive() for thread in list(self._workers))

    def trouble(self) -> str | None:
        """Why the server can't take requests now, if it can't."""
        if self.closing:
            return "it is about to end"
        if not self.workers_alive or self._encoder is None or not self._encoder.is_alive():
            return "its threads have not started"
        if self.queue.state()["oldest_batch"] > _STUCK:
            return "a batch does not end"
        return None

    def _encode(self) -> None:
        """All texts that wait, of one model, in one call."""
        while (first := self._texts.get()) is not None:
            waiting: list[Ticket | float | None] = [first]
            while not self._texts.empty():
                waiting.append(self._texts.get())
            tickets = [one for one in waiting if isinstance(one, Ticket)]
            for model in dict.fromkeys(ticket.model for ticket in tickets):
                self._encode_for(model, [one for one in tickets if one.model is model])
            for end in (one for one in waiting if isinstance(one, float)):
                self.queue.drain(max(0.0, end - self.queue.clock()))
            if None in waiting:
                break

    def _encode_for(self, model: Model, tickets: list[Ticket]) -> None:
        started = time.perf_counter()
        try:
            encoded = model.tokenizer.encode([text for one in tickets for text in one.texts])
        except Exception:  # one text may have spoilt it: each request by itself
            if len(tickets) > 1:
                for ticket in tickets:
                    self._encode_for(model, [ticket])
            else:
                refusal = Refusal("bad-field", "the text can't be encoded", path="input")
                self._submit(tickets[0], [], refusal)
            return
        seconds, place, longest = time.perf_counter() - started, 0, model.tokenizer.length
        for ticket in tickets:
            ticket.encode_seconds = seconds
            own = encoded[place : place + ticket.count]
            cut = Refusal("too-large", f"a text has {longest} tokens or more, and may not be cut")
            long = ticket.whole and any(len(ids) >= longest for ids in own)
            self._submit(ticket, own, cut if long else None)
            place += ticket.count

    def _submit(self, ticket: Ticket, encoded: list[list[int]], refusal: Refusal | None) -> None:
        ticket.texts = []  # nobody needs them any more
        try:
            if refusal is not None:
                raise refusal
            with self._lock:
                if not ticket.gone:
                    ticket.request = self.queue.submit(
                        encoded,
                        ticket.terms,
                        model=ticket.model,
                        received=ticket.received,
                        done=ticket.end,
                        number=ticket.number,
                    )
        except Exception as error:  # whatever it is, this thread encodes for others, too
            failed = Refusal("failed", "the server failed on this request")
            ticket.refusal = error if isinstance(error, Refusal) else failed
            ticket.end()
        finally:
            with self._lock:
                self._pending -= ticket.size

    def _hire(self) -> None:
        worker = threading.Thread(target=self._work, name="worker", daemon=True)
        self._workers.add(worker)
        worker.start()

    def _work(self) -> None:
        queue = self.queue
        try:
            while not self._stopped:
                batch = queue.take() or queue.take_audit()
                if batch is not None:
                    self._run(batch)
                    continue
                with queue.changed:
                    if not self._stopped and not queue.has_rows():
                        queue.changed.wait(1.0)
        except BaseException:  # a thread that ends takes nothing with it but its batch
            self.deaths += 1
        finally:
            self._workers.discard(threading.current_thread())
            if not self._stopped:
                self._hire()

    def _run(self, batch: Batch) -> None:
        try:
            logits = batch.model.runtime(**batch.inputs(), budget=batch.level)
            if not np.isfinite(logits).all():
                raise ArithmeticError("the model answered with numbers that are none")
            # In double precision, as certificates are made: margins differ far behind the point.
            answers = softmax(np.asarray(logits, np.float64))
        except BaseException as error:
            self.queue.fail(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            self.queue.finish(batch, answers)


def load_model(
    folder: Path,
    config: Config,
    *,
    calibrate_seconds: float = 20.0,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """The model in a folder, ready to serve: its forecast found or measured, every level warm."""
    workers, threads = share_cores(usable_cores(), config.machine)
    runtime = Runtime(folder, threads=threads)
    config = config.fitted(runtime.levels)
    told = config.promised
    promise = find_promise(runtime, folder, file=told.file, share=told.audit)
    try:
        forecast = runtime.forecast
    except ValueError:  # there is none, or it is of another machine
        forecast = calibrate(runtime, seconds=calibrate_seconds, progress=progress)
    for level in runtime.levels:
        runtime(**runtime.tokenizer.pad_arrays(runtime.tokenizer.encode(["warm"])), budget=level)
    setting = setting_of(config, runtime.levels, forecast, longest=runtime.tokenizer.length)
    return Model(
        runtime,
        runtime.levels,
        runtime.costs,
        runtime.classes,
        runtime.tokenizer,
        runtime.identity,
        config,
        setting.with_workers(workers),
        promise,
    )


def setting_of(
    config: Config, levels: tuple[float, ...], forecast: Forecast | Any, *, longest: int
) -> Setting:
    """What the policy of a configuration knows."""
    length = min(64, longest)
    times = [forecast.milliseconds(rows=1, length=length, level=level) for level in levels]
    worth = config.rule.worth or usual_worth(levels)
    machine = config.machine
    return Setting(
        rungs=build_ladder(config.tiers, levels, worth=worth, times=times),
        levels=levels,
        forecast=forecast,
        max_batch=machine.max_batch,
        max_wait=machine.max_wait_s,
        max_tokens=machine.max_tokens,
        max_rows=machine.max_rows,
        rule=config.rule,
        margin=min(getattr(forecast, "margin", 0.0), 1.0),
        reply=_REPLY,
    )


def usable_cores(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Cores that this process may use: its affinity, and the quotas of its control groups."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
        named = next((line[3:] for line in lines if line.startswith("0::")), "/").strip("/")
    except OSError:
        named = ""
    for group in (root / named, *(root / named).parents):  # a container sees its own as the root
        if group == root.parent:
            break
        try:
            quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
            if quota != "max":
                cores = min(cores, max(int(quota) // int(period), 1))
        except (OSError, ValueError):
            pass
    return cores


def share_cores(cores: int, machine: Capacity) -> tuple[int, int]:
    """Workers, and threads of each. Of two cores, one is left to the event loop."""
    workers = machine.workers or min(max(cores // 4, 1), _MOST_WORKERS)
    threads = machine.threads or (1 if cores <= 2 else max(cores // workers, 1))
    return workers, threads
