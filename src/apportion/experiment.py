"""Experiments: a TOML file → stages → records.

A stage whose records are there is not run again. Killed at any moment, a run goes on where it was.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch

from apportion import records
from apportion.backbones.encoder import EncoderConfig
from apportion.gates import check_budget
from apportion.recipes import RECIPES, recipe
from apportion.stages import SCORES, Stage, has_model, is_done, run_stage, time_stage
from apportion.tasks.marked import Marked
from apportion.training import Tick

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_STAGE_KEYS = {"method", "recipe", "score", "from", "teacher", "grid", "each", "latency"}


@dataclass(frozen=True)
class Experiment:
    """An experiment file, checked."""

    name: str
    title: str
    task: Marked
    model: Mapping[str, Any]
    data_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    budgets: tuple[float, ...]
    stages: tuple[Stage, ...]
    paper: str | None = None  # the paper's study that this one is laid beside
    notes: tuple[str, ...] = ()


def read_experiment(path: Path) -> Experiment:
    """The experiment in a TOML file; an unknown key is an error that names the known ones."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no experiment file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    try:
        return _experiment(data)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def _experiment(data: dict[str, Any]) -> Experiment:
    known = {"name", "title", "paper", "notes", "budgets", "seeds", "task", "model", "stage"}
    _no_other_keys("the file", data, known)
    for needed in ("name", "seeds", "task", "model", "stage"):
        if needed not in data:
            raise ValueError(f"{needed!r} is missing")
    _no_other_keys("[seeds]", data["seeds"], {"data", "optimisation"})
    kind = data["task"].get("kind")
    if kind != "marked":
        raise ValueError(f"[task] kind must be 'marked', not {kind!r}")
    numbers = {k: v for k, v in data["task"].items() if k != "kind"}
    _no_other_keys("[task]", numbers, {f.name for f in fields(Marked)} - {"seed"})
    shape = {f.name for f in fields(EncoderConfig)} - {"vocabulary", "length", "classes"}
    _no_other_keys("[model]", data["model"], shape)
    data_seeds, seeds = (tuple(data["seeds"][k]) for k in ("data", "optimisation"))
    budgets = tuple(check_budget(b) for b in data.get("budgets", (0.25, 0.5, 0.75)))
    task = Marked(**numbers, seed=data_seeds[0])
    stages: list[Stage] = []
    for entry in data["stage"]:
        cells = [
            (replace(task, seed=data_seed), seed)
            for data_seed in (data_seeds if entry.get("grid") else data_seeds[:1])
            for seed in seeds
        ]
        for cell_task, seed in cells:
            stages += _stages_of(entry, cell_task, data["model"], seed, budgets, stages)
    return Experiment(
        name=data["name"],
        title=data.get("title", data["name"]),
        task=task,
        model=data["model"],
        data_seeds=data_seeds,
        seeds=seeds,
        budgets=budgets,
        stages=tuple(stages),
        paper=data.get("paper"),
        notes=tuple(data.get("notes", ())),
    )


def _stages_of(
    entry: Mapping[str, Any],
    task: Marked,
    model: Mapping[str, Any],
    seed: int,
    budgets: tuple[float, ...],
    earlier: Iterable[Stage],
) -> list[Stage]:
    """The stages of one [[stage]] entry for one seed: one, or one a budget with `each`."""
    if "method" not in entry:
        raise ValueError("a [[stage]] has no method")
    method = entry["method"]
    numbers = {k: v for k, v in entry.items() if k not in _STAGE_KEYS}
    if ("recipe" in entry) == ("score" in entry):
        raise ValueError(f"stage {method!r} needs either a recipe or a score")
    if "score" in entry:
        if entry["score"] not in SCORES:
            raise ValueError(f"unknown score {entry['score']!r}; known: {', '.join(SCORES)}")
        _no_other_keys(f"stage {method!r}", entry, _STAGE_KEYS)
    elif entry["recipe"] not in RECIPES:
        raise ValueError(f"unknown recipe {entry['recipe']!r}; known: {', '.join(RECIPES)}")

    def find(name: str) -> Stage:
        for stage in earlier:
            if (stage.method, stage.task.seed, stage.seed) == (name, task.seed, seed):
                return stage
        raise ValueError(f"stage {method!r} refers to {name!r}, which is not an earlier stage")

    base = Stage(
        method=method,
        task=task,
        model=model,
        seed=seed,
        budgets=budgets,
        recipe=recipe(entry["recipe"], **numbers) if "recipe" in entry else None,
        score=entry.get("score"),
        parent=find(entry["from"]) if "from" in entry else None,
        teacher=find(entry["teacher"]) if "teacher" in entry else None,
        latency=bool(entry.get("latency", False)),
    )
    if "each" not in entry:
        return [base]
    assert base.recipe is not None
    return [
        replace(
            base,
            only=check_budget(budget),
            recipe=base.recipe.with_changes(budgets=(budget, budget), select_at=(budget,)),
        )
        for budget in entry["each"]
    ]


def _no_other_keys(where: str, data: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(data) - known)
    if unknown:
        raise ValueError(
            f"{where} has unknown keys {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        )


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
    have = records.read(results)
    todo = [stage for stage in experiment.stages if not is_done(stage, have)]
    if jobs == 1:
        for number, stage in enumerate(todo):
            watcher.started(stage, len(todo) - number)
            started = time.monotonic()
            records.append(results, *run_stage(stage, runs, partial(watcher.ticked, stage)))
            watcher.finished(stage, time.monotonic() - started)
    elif todo:
        _run_in_parallel(todo, runs, results, watcher, jobs)
    for stage in experiment.stages:
        if stage.latency and not _is_timed(stage, have):
            watcher.started(stage, 1)
            started = time.monotonic()
            new = time_stage(stage, runs, progress=partial(watcher.timing, stage))
            records.append(results, *new)
            watcher.finished(stage, time.monotonic() - started)
    return current(experiment, records.read(results))


def current(experiment: Experiment, have: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records that belong to an experiment as it is now, without what it no longer holds."""
    keys = {stage.key for stage in experiment.stages}
    return [dict(record) for record in have if record.get("stage") in keys]


def _is_timed(stage: Stage, have: Iterable[Mapping[str, Any]]) -> bool:
    timed = {r["budget"] for r in have if r.get("kind") == "latency" and r["stage"] == stage.key}
    return timed >= set(stage.budgets)


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
                records.append(results, *future.result())
                watcher.finished(stage, time.monotonic() - started)
    except BrokenProcessPool:
        raise OSError("a worker process was ended; run the same command again to go on") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


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
    torch.set_num_threads(threads)


def _work(stage: Stage, runs: Path) -> list[dict[str, Any]]:
    last = 0.0

    def tell(tick: Tick) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5 or tick.step == tick.steps:
            last = time.monotonic()
            _ticks.put((stage.key, tick))

    return run_stage(stage, runs, tell)
