"""Studies on Ray: the keys and records of the local driver, also when workers are killed."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from threading import Event, Thread

import psutil
import pytest
from clusters import ON_RAY, two_cpus, workers
from witnesses import Quiet

from apportion.study import records
from apportion.study.driver import local_driver, ray_driver
from apportion.study.experiment import parse_experiment
from apportion.study.stages import checkpoint_folder

pytestmark = ON_RAY

SMALL = """
name = "small"
budgets = [0.5]
[task]
kind = "marked"
length = 12
values = 4
distractors = 2
train = 64
validation = 32
test = 32
[model]
layers = 2
heads = 4
hidden = 16
feedforward = 32
[seeds]
data = [1]
optimisation = [7]
[[stage]]
method = "dense"
recipe = "dense"
epochs = 2
[[stage]]
method = "budgeted"
from = "dense"
recipe = "budgeted"
epochs = 2
[[stage]]
method = "post-hoc"
from = "dense"
score = "loss-increase"
"""
# What tells one run of the same thing from another: when it was, and how long things took.
RUN = {"time", "seconds", "command", "training", "share_of_passes", "share_of_padded_passes"}


@contextmanager
def one_killed(*methods):
    """Kills the first worker that is seen at a stage of these methods; the list then has it."""
    killed, ended = [], Event()

    def watch() -> None:
        while not killed and not ended.wait(0.005):
            for worker in [one for method in methods for one in workers(method)][:1]:
                with suppress(psutil.Error):
                    worker.kill()
                    killed.append(worker)

    watching = Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield killed
    finally:
        ended.set()
        watching.join()


@pytest.fixture(scope="module")
def cluster():
    with two_cpus():
        yield


def plain(record):
    return {name: value for name, value in record.items() if name not in RUN}


def test_records_are_those_of_the_local_driver(cluster, tmp_path):
    plan = parse_experiment(SMALL)
    local = local_driver.run(
        plan, tmp_path / "runs", results=tmp_path / "local.jsonl", watcher=Quiet()
    )
    watcher = Quiet()
    found = ray_driver.run(
        plan, tmp_path / "other", results=tmp_path / "ray.jsonl", watcher=watcher
    )
    assert sorted(watcher.done) == sorted(stage.label for stage in plan.stages)
    order = [stage.key for stage in plan.stages]
    found = sorted(found, key=lambda record: order.index(record["stage"]))
    assert list(map(plain, found)) == list(map(plain, local))
    again = Quiet()
    results = tmp_path / "ray.jsonl"
    assert ray_driver.run(plan, tmp_path / "other", results=results, watcher=again)
    assert again.done == []


def test_a_killed_worker_is_tried_again_and_a_lost_dense_model_is_made_once(cluster, tmp_path):
    plan = parse_experiment(SMALL)
    dense, *rest = plan.stages
    results = tmp_path / "small.jsonl"
    first = ray_driver.run(
        plan.of_seeds(1), tmp_path / "runs", results=tmp_path / "whole.jsonl", watcher=Quiet()
    )
    # The records of the dense model alone are there: both that come from it wait for one maker.
    for record in first:
        if record["stage"] == dense.key:
            records.append(results, record)
    watcher = Quiet()
    with one_killed(*(stage.method for stage in plan.stages)) as killed:
        found = ray_driver.run(plan, tmp_path / "lost", results=results, watcher=watcher)
    assert len(killed) == 1
    assert sorted(watcher.done) == sorted(stage.label for stage in rest)
    assert checkpoint_folder(dense, tmp_path / "lost").is_dir()
    assert {r["stage"] for r in found} == {stage.key for stage in plan.stages}
