"""The driver: runs the stages of an experiment, alone or side by side, and appends their records.

A stage whose records are there is not run again. Killed at any moment, a run goes on where it was.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch

from apportion.data.text import Text
from apportion.serving.runtime.prediction import ENCODING
from apportion.study import records
from apportion.study.answers import has_answers
from apportion.study.completion import is_done
from apportion.study.experiment import Experiment, current
from apportion.study.measuring import run_stage, time_predictions_of, time_stage
from apportion.study.stages import Stage, has_model
from apportion.training.progress import Tick


class Watcher(Protocol):
    """Whoever shows people how far a run is."""

    def started(self, stage: Stage, left: int) -> None:
        """A stage begins; `left` are still to do, this one included."""

    def ticked(self, stage: Stage, tick: Tick) -> None:
        """A stage took a training step."""

    def finished(self, stage: Stage, seconds: float) -> None:
        """A stage's records are on disk."""

    def timing(self, stage: Stage, done: int, of: int) -> None:
        """A stage's model is being timed."""


def run(
    experiment: Experiment, runs: Path, *, results: Path, watcher: Watcher, jobs: int = 1
) -> list[dict[str, Any]]:
    """All records of an experiment, after running the stages whose records are not there yet.

    Each of several jobs is a process with its share of the threads. Timing comes last and alone.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs}")
    todo, to_time = unfinished(experiment, records.read(results), results=results)
    if jobs == 1:
        for number, stage in enumerate(todo):
            watcher.started(stage, len(todo) - number)
            started = time.monotonic()
            tell = partial(watcher.ticked, stage)
            new = run_stage(stage, runs, progress=tell, results=results)
            records.append(results, *new)
            watcher.finished(stage, time.monotonic() - started)
    elif todo:
        _run_in_parallel(todo, runs, results=results, watcher=watcher, jobs=jobs)
    time_last(to_time, runs, results=results, watcher=watcher)
    return current(experiment, records.read(results))


def time_last(stages: Sequence[Stage], runs: Path, *, results: Path, watcher: Watcher) -> None:
    """Times the models of stages in this process, one after the other, when all else is done."""
    for number, stage in enumerate(stages):
        watcher.started(stage, len(stages) - number)
        started = time.monotonic()
        have = records.read(results)
        if not _is_timed(stage, have):
            new = time_stage(stage, runs, progress=partial(watcher.timing, stage))
            records.append(results, *new)
        if not _has_throughput(stage, have):
            records.append(results, *time_predictions_of(stage, runs))
        watcher.finished(stage, time.monotonic() - started)


def unfinished(
    experiment: Experiment, have: Iterable[Mapping[str, Any]], *, results: Path | None = None
) -> tuple[list[Stage], list[Stage]]:
    """The stages that have yet to be run, and those that have yet to be timed.

    Where the file of results is given, a stage whose answers are not beside it is to be run, too.
    """
    have = list(have)
    todo = [s for s in experiment.stages if not (is_done(s, have) and _is_answered(s, results))]
    timed = [s for s in experiment.stages if s.latency]
    return todo, [s for s in timed if not (_is_timed(s, have) and _has_throughput(s, have))]


def _is_answered(stage: Stage, results: Path | None) -> bool:
    return results is None or not stage.answers or has_answers(stage, results)


def _is_timed(stage: Stage, have: Iterable[Mapping[str, Any]]) -> bool:
    device = torch.device(stage.device).type
    timed = {
        (r.get("protocol"), r.get("budget"))
        for r in have
        if r.get("kind") == "latency"
        and r.get("stage") == stage.key
        and r.get("device", "cpu") == device
    }
    return timed >= set(product(stage.timing.protocols(stage.task), stage.timed_at))


def _has_throughput(stage: Stage, have: Iterable[Mapping[str, Any]]) -> bool:
    """Whether predictions were timed, where there are any: of one checkpoint with its texts."""
    if not isinstance(stage.task, Text) or stage.only or not stage.timing.predictions:
        return True
    timed = {
        r.get("budget")
        for r in have
        if r.get("kind") == "throughput"
        and r.get("stage") == stage.key
        and r.get("encoding") == ENCODING
    }
    return timed >= set(stage.timed_at)


def _run_in_parallel(
    todo: Sequence[Stage], runs: Path, *, results: Path, watcher: Watcher, jobs: int
) -> None:
    by_key = {stage.key: stage for stage in todo}
    waiting = list(todo)
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.stage for worker in workers):
            busy = {worker.stage.key for worker in workers if worker.stage}
            for stage in _startable(waiting, runs, busy=busy, todo=by_key, free=jobs - len(busy)):
                watcher.started(stage, len(waiting) + sum(bool(w.stage) for w in workers))
                idle = [worker for worker in workers if worker.stage is None]
                if not idle:
                    idle = [_Worker(runs, results, threads=max(1, (os.cpu_count() or 1) // jobs))]
                    workers += idle
                idle[0].begin(stage)
                waiting.remove(stage)
            # Not for ever: a stage may save a model that others wait for long before its own end.
            wait([worker.connection for worker in workers], timeout=0.2)
            for worker in workers:
                while worker.connection.poll():
                    _hear(worker, results, watcher)
    except BaseException:
        # The other stages would go on to their end with nobody to take their records.
        for worker in workers:
            worker.process.terminate()
        raise
    finally:
        for worker in workers:
            worker.connection.close()  # ends one that waits for a stage
            worker.process.join()


class _Worker:
    """A process that runs the stages that it is sent, one after the other."""

    def __init__(self, runs: Path, results: Path, threads: int) -> None:
        context = get_context("spawn")
        self.connection, its_end = context.Pipe()
        self.process = context.Process(target=_work, args=(its_end, runs, results, threads))
        self.process.start()
        its_end.close()  # so that the end of the process is heard here
        self.stage: Stage | None = None
        self.began = 0.0

    def begin(self, stage: Stage) -> None:
        """Sends it a stage."""
        self.stage, self.began = stage, time.monotonic()
        self.connection.send(stage)


def _hear(worker: _Worker, results: Path, watcher: Watcher) -> None:
    """Takes one message of a worker: a step, a stage's records, or what went wrong."""
    try:
        message = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        again = "run the same command again to go on"
        raise OSError(f"a worker process was ended; {again}") from None
    stage = worker.stage
    assert stage is not None
    if isinstance(message, Tick):
        watcher.ticked(stage, message)
    elif isinstance(message, list):
        records.append(results, *message)
        watcher.finished(stage, time.monotonic() - worker.began)
        worker.stage = None
    else:
        error, where = message
        if isinstance(error, ValueError):
            error = ValueError(f"{stage.label}: {error}")
        raise error from RuntimeError(f"in its worker:\n{where}")


def _startable(
    waiting: Iterable[Stage], runs: Path, *, busy: set[str], todo: Mapping[str, Stage], free: int
) -> list[Stage]:
    """The stages that can start now; one that starts may be what the next has to wait for."""
    chosen: list[Stage] = []
    for stage in waiting:
        taken = busy | {started.key for started in chosen}
        if len(chosen) < free and _is_ready(stage, runs, taken, todo):
            chosen.append(stage)
    return chosen


def _is_ready(stage: Stage, runs: Path, busy: set[str], todo: Mapping[str, Stage]) -> bool:
    """Whether a stage can start: what it comes from is there, or nobody else will make it."""
    for source in stage.sources:
        if has_model(source, runs):
            continue
        # A source whose records exist but whose model is gone is made again by the first stage
        # that needs it; a second one waits until that is done.
        remade = any(source.key in _sources(todo[key]) for key in busy if key in todo)
        if source.key in todo or source.key in busy or remade:
            return False
        if not _is_ready(source, runs, busy, todo):
            return False
    return True


def _sources(stage: Stage) -> set[str]:
    """The keys of all stages that a stage comes from."""
    return {key for source in stage.sources for key in (source.key, *_sources(source))}


def _work(connection: Any, runs: Path, results: Path, threads: int) -> None:
    """What a worker does until the process that started it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends its workers
    torch.set_num_threads(threads)
    Thread(target=_end_with_parent, daemon=True).start()
    last = 0.0

    def tell(tick: Tick) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5 or tick.step == tick.steps:
            last = time.monotonic()
            connection.send(tick)

    while True:
        try:
            stage = connection.recv()
        except EOFError:
            return
        try:
            answer: Any = run_stage(stage, runs, progress=tell, results=results)
        except Exception as error:
            answer = (error, traceback.format_exc())  # which does not travel with the error
        connection.send(answer)


def _end_with_parent() -> None:
    """Ends this worker when the process that started it is killed, or it would wait for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
