"""The driver on Ray: stages as tasks that wait for those they come from, on any number of machines.

Keys, records and checkpoints are those of the local driver. A task whose worker is killed is tried
again and goes on where its training was; a run that is killed goes on when it is started again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from apportion.serving.batch.ray_cluster import connected
from apportion.study import records
from apportion.study.driver.local_driver import Watcher, time_last, unfinished
from apportion.study.experiment import Experiment, current
from apportion.study.measuring import run_stage
from apportion.study.production import produce
from apportion.study.stages import Stage, checkpoint_folder, has_model
from apportion.training.progress import Tick

_RETRIES = 3  # of a task whose worker or machine is gone; an error of the stage is not retried
_EVERY = 0.5  # seconds between two looks at how far the stages are


def run(
    experiment: Experiment,
    runs: Path,
    *,
    results: Path,
    watcher: Watcher,
    address: str | None = None,
    threads: int = 1,
) -> list[dict[str, Any]]:
    """All records of an experiment, after running on Ray the stages whose records are not there.

    Each stage has some threads, and as many CPUs of the cluster. Checkpoints, results and data must
    be where every machine sees them. Timing comes last, alone, in this process.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    todo, to_time = unfinished(experiment, records.read(results), results=results)
    if todo:
        place = _Place(runs.absolute(), results.absolute(), threads)
        with connected(address) as ray:
            _Tasks(ray, todo, place).run(watcher)
    time_last(to_time, runs, results=results, watcher=watcher)
    return current(experiment, records.read(results))


@dataclass(frozen=True)
class _Place:
    """Where stages are run, and as what: workers start in another folder, by another command."""

    runs: Path
    results: Path
    threads: int
    folder: str = ""
    command: tuple[str, ...] = ()

    def here(self) -> _Place:
        """The same, with the folder and the command of this process."""
        return _Place(self.runs, self.results, self.threads, os.getcwd(), tuple(sys.argv))  # noqa: PTH109

    def settle(self) -> None:
        """Makes a worker read the same relative paths, and its records name the same command."""
        os.chdir(self.folder)
        sys.argv[:] = self.command
        torch.set_num_threads(self.threads)


class _Notes:
    """An actor that keeps how far each stage is until the driver asks."""

    def __init__(self) -> None:
        self._last: dict[str, Tick | None] = {}

    def tell(self, key: str, tick: Tick | None) -> None:
        """A stage has begun, or taken a step."""
        self._last[key] = tick

    def take(self) -> dict[str, Tick | None]:
        """What was told since the last time."""
        told, self._last = self._last, {}
        return told


class _Tasks:
    """The tasks of a run: submitted with their sources, then heard until all records are there."""

    def __init__(self, ray: ModuleType, todo: Sequence[Stage], place: _Place) -> None:
        self.ray, self.todo, self.place = ray, {_name(stage): stage for stage in todo}, place.here()
        self.notes = ray.remote(_Notes).options(num_cpus=0, max_restarts=-1).remote()
        self.tasks: dict[str, Any] = {}
        for stage in todo:
            self._submit(stage)
        self.began: dict[str, float] = {}

    def _submit(self, stage: Stage) -> Any:
        """The task of a stage; that of a source whose model is lost only makes the model again."""
        name = _name(stage)
        if name not in self.tasks:
            sources = [self._submit(s) for s in stage.sources if self._is_to_make(s)]
            work = _run_stage if name in self.todo else _remake
            task = self.ray.remote(work).options(
                num_cpus=self.place.threads, max_retries=_RETRIES, name=stage.label
            )
            self.tasks[name] = task.remote(stage, self.place, self.notes, *sources)
        return self.tasks[name]

    def _is_to_make(self, source: Stage) -> bool:
        return _name(source) in self.todo or not has_model(source, self.place.runs)

    def run(self, watcher: Watcher) -> None:
        """Appends the records of each stage as it ends."""
        left = dict(self.todo)
        try:
            while left:
                waiting = [self.tasks[key] for key in left]
                ready, _ = self.ray.wait(waiting, num_returns=len(waiting), timeout=_EVERY)
                ended = [key for key in left if self.tasks[key] in ready]
                self._hear(watcher, left)
                for key in ended:
                    stage = left[key]
                    new = self._result(stage)
                    self._begin(watcher, stage, len(left))
                    records.append(self.place.results, *new)
                    watcher.finished(stage, time.monotonic() - self.began[key])
                    del left[key]
        except BaseException:
            # The other stages would go on to their end with nobody to take their records.
            for task in self.tasks.values():
                with suppress(Exception):
                    self.ray.cancel(task, force=True)
            raise

    def _hear(self, watcher: Watcher, left: dict[str, Stage]) -> None:
        from ray.exceptions import RayError

        try:
            told = self.ray.get(self.notes.take.remote(), timeout=10)
        except RayError:  # its machine is gone, or very busy; it starts again elsewhere
            return
        for key, tick in told.items():
            if key in left:
                self._begin(watcher, left[key], len(left))
                if tick is not None:
                    watcher.ticked(left[key], tick)

    def _begin(self, watcher: Watcher, stage: Stage, left: int) -> None:
        if _name(stage) not in self.began:
            self.began[_name(stage)] = time.monotonic()
            watcher.started(stage, left)

    def _result(self, stage: Stage) -> list[dict[str, Any]]:
        from ray.exceptions import RayError, RayTaskError

        try:
            made: list[dict[str, Any]] = self.ray.get(self.tasks[_name(stage)])
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ValueError):
                cause = ValueError(f"{stage.label}: {cause}")
            raise cause from RuntimeError(f"in its worker:\n{error.traceback_str}")
        except RayError as error:
            raise OSError(
                f"{stage.label}: its worker was ended {_RETRIES + 1} times; run the same command "
                "again to go on"
            ) from error
        return made


def _name(stage: Stage) -> str:
    """What tells stages apart: the name of the folder of their model."""
    return checkpoint_folder(stage, Path()).name


def _teller(stage: Stage, notes: Any) -> Callable[[Tick], None]:
    notes.tell.remote(_name(stage), None)
    last = time.monotonic()

    def tell(tick: Tick) -> None:
        nonlocal last
        if time.monotonic() - last > _EVERY or tick.step == tick.steps:
            last = time.monotonic()
            notes.tell.remote(_name(stage), tick)

    return tell


def _run_stage(stage: Stage, place: _Place, notes: Any, *sources: object) -> list[dict[str, Any]]:
    """A task: trains and measures a stage when its sources, which are tasks, have ended."""
    place.settle()
    tell = _teller(stage, notes)
    return run_stage(stage, place.runs, progress=tell, results=place.results)


def _remake(stage: Stage, place: _Place, notes: Any, *sources: object) -> None:
    """A task: makes a model again whose records are there, once for all that come from it."""
    place.settle()
    produce(stage, place.runs, progress=_teller(stage, notes))
