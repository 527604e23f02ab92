"""The driver: runs the stages of an experiment, alone or side by side, and appends their records.

A stage whose records are there is not run again. Killed at any moment, a run goes on where it was.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import product
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch

from apportion.data.text import Text
from apportion.serving.prediction import ENCODING
from apportion.study import records
from apportion.study.experiment import Experiment, current
from apportion.study.measuring import run_stage, time_predictions_of, time_stage
from apportion.study.stages import Stage, has_model, is_done
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
    experiment: Experiment, runs: Path, results: Path, watcher: Watcher, jobs: int = 1
) -> list[dict[str, Any]]:
    """All records of an experiment, after running the stages whose records are not there yet.

    Each of several jobs is a process with its share of the threads. Timing comes last and alone.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs}")
    todo, to_time = unfinished(experiment, records.read(results))
    if jobs == 1:
        for number, stage in enumerate(todo):
            watcher.started(stage, len(todo) - number)
            started = time.monotonic()
            records.append(results, *run_stage(stage, runs, partial(watcher.ticked, stage)))
            watcher.finished(stage, time.monotonic() - started)
    elif todo:
        _run_in_parallel(todo, runs, results, watcher, jobs)
    for number, stage in enumerate(to_time):
        watcher.started(stage, len(to_time) - number)
        started = time.monotonic()
        have = records.read(results)
        if not _is_timed(stage, have):
            new = time_stage(stage, runs, progress=partial(watcher.timing, stage))
            records.append(results, *new)
        if not _has_throughput(stage, have):
            records.append(results, *time_predictions_of(stage, runs))
        watcher.finished(stage, time.monotonic() - started)
    return current(experiment, records.read(results))


def unfinished(
    experiment: Experiment, have: Iterable[Mapping[str, Any]]
) -> tuple[list[Stage], list[Stage]]:
    """The stages that have yet to be run, and those that have yet to be timed."""
    have = list(have)
    todo = [stage for stage in experiment.stages if not is_done(stage, have)]
    timed = [s for s in experiment.stages if s.latency]
    return todo, [s for s in timed if not (_is_timed(s, have) and _has_throughput(s, have))]


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
    todo: list[Stage], runs: Path, results: Path, watcher: Watcher, jobs: int
) -> None:
    context = get_context("spawn")
    ticks: Any = context.Queue()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    by_key = {stage.key: stage for stage in todo}
    running: dict[Future[list[dict[str, Any]]], tuple[Stage, float]] = {}
    waiting = list(todo)
    pool = ProcessPoolExecutor(jobs, context, _begin_worker, (ticks, threads))
    try:
        while waiting or running:
            busy = {stage.key for stage, _ in running.values()}
            for stage in [s for s in waiting if _is_ready(s, runs, busy, by_key)]:
                if len(running) == jobs:
                    break
                watcher.started(stage, len(waiting) + len(running))
                running[pool.submit(_work, stage, runs)] = (stage, time.monotonic())
                waiting.remove(stage)
                busy.add(stage.key)
            done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            while not ticks.empty():
                key, tick = ticks.get()
                watcher.ticked(by_key[key], tick)
            for future in done:
                stage, started = running.pop(future)
                try:
                    new = future.result()
                except ValueError as error:
                    raise ValueError(f"{stage.label}: {error}") from error
                records.append(results, *new)
                watcher.finished(stage, time.monotonic() - started)
    except BaseException as error:
        # The other stages would go on to their end with nobody to take their records.
        for process in list(pool._processes.values()):
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            again = "run the same command again to go on"
            raise OSError(f"a worker process was ended; {again}") from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _is_ready(stage: Stage, runs: Path, busy: set[str], todo: Mapping[str, Stage]) -> bool:
    """Whether a stage can start: what it comes from is there, or nobody else will make it."""
    for source in (stage.parent, stage.teacher):
        if source is None or has_model(source, runs):
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
    found: set[str] = set()
    for source in (stage.parent, stage.teacher):
        if source is not None:
            found |= {source.key} | _sources(source)
    return found


_ticks: Any = None


def _begin_worker(ticks: Any, threads: int) -> None:
    global _ticks
    _ticks = ticks
    ticks.cancel_join_thread()  # what was not shown is not worth waiting for at the end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends its workers
    torch.set_num_threads(threads)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this worker when the process that started it is killed, or it would wait for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(stage: Stage, runs: Path) -> list[dict[str, Any]]:
    last = 0.0

    def tell(tick: Tick) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5 or tick.step == tick.steps:
            last = time.monotonic()
            _ticks.put((stage.key, tick))

    return run_stage(stage, runs, tell)
