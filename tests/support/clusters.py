"""Ray on this machine for tests: started once per file, and its processes found by their names."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest import mock

import psutil
import pytest

# Ray warns of its own deprecated settings while it makes their defaults, and of files that have
# fewer blocks than there are actors, as those of tests have: what is raised inside Ray is its own.
ON_RAY = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings(r"ignore:::ray\."),
]
PATIENCE = 240.0  # seconds for a busy machine to start processes in


@contextmanager
def patient() -> Iterator[None]:
    """Lets Ray start on a busy machine: it gives itself half a minute, which can't be set."""
    require_ray()
    from ray._private import services

    get_node = services.get_node

    def asked_often(*words):
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return get_node(*words)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    os.environ.setdefault("RAY_worker_register_timeout_seconds", str(int(PATIENCE)))
    with mock.patch.object(services, "get_node", asked_often):
        yield


@contextmanager
def two_cpus() -> Iterator[None]:
    """A cluster of two CPUs that ends with the tests."""
    with patient():
        _start()
    try:
        yield
    finally:
        require_ray().shutdown()


def _start() -> None:
    ray = require_ray()
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="error",
    )


def require_ray():
    from apportion.serving.batch.ray_cluster import require_ray

    return require_ray()


def workers(name: str, parent: psutil.Process | None = None) -> list[psutil.Process]:
    """The processes of Ray below this one, or another, that run something of a name."""
    found = []
    for process in (parent or psutil.Process()).children(recursive=True):
        with suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(f"ray::{name}"):
                found.append(process)
    return found
