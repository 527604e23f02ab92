"""The server on Ray Serve: the same application in each replica, reconfigured while it runs.

Ray's own batching is not used: it waits for batches, first come first served. Requests are let
through to the engine of a replica, where the policy sees them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from apportion.serving.batch.ray_cluster import require_ray
from apportion.serving.server.admitted import Model
from apportion.serving.server.app import build_app
from apportion.serving.server.configuration import config_of
from apportion.serving.server.engine import ServingEngine, load_model, setting_of
from apportion.serving.server.keys import keyring_of
from apportion.serving.server.terms import Capacity, Config

NAME = "apportion"  # of the application
_IMPORT = "apportion.serving.server.ray_serving:build"
_ONGOING, _QUEUED = 512, 1024  # requests in a replica, and before all of them


class Replica:
    """One engine and its application; Ray starts it, asks how it is, and reconfigures it."""

    def __init__(self, folder: str, threads: int = 1, home: str = ".") -> None:
        # Or a thread that computes keeps the event loop waiting for 5 ms at a time.
        sys.setswitchinterval(5e-4)
        self.folder, self.home = folder, Path(home)
        self.machine = Capacity(workers=1, threads=threads)
        self.engine = ServingEngine(load_model(Path(folder), Config(machine=self.machine)))
        self.engine.start()
        self._application: Any = None

    def __serve_build_asgi_app__(self) -> Any:
        name = Path(self.folder).resolve().name or "model"
        self._application = build_app(self.engine, name=name)
        return self._application

    async def reconfigure(self, given: Mapping[str, Any]) -> None:
        """Takes other tiers, limits, keys or another policy; a `folder` is swapped in.

        What is given are the tables of a configuration file. Requests that wait keep their terms.
        """
        tables = {name: value for name, value in given.items() if name != "folder"}
        config = self._config(tables)
        folder = str(given.get("folder", self.folder))
        if folder != self.folder:
            model = await asyncio.to_thread(load_model, Path(folder), config)
        else:
            model = with_config(self.engine.queue.model, config)
        keyring = keyring_of(config)
        self.engine.swap(model)
        self.folder = folder
        service = self._application.state.service
        service.keyring = keyring
        service.name = config.name or service.name

    def _config(self, tables: Mapping[str, Any]) -> Config:
        config = config_of(tables, self.home)
        # Threads are what the replica was given CPUs for.
        given = self.machine
        machine = replace(config.machine, workers=given.workers, threads=given.threads)
        return replace(config, machine=machine)

    def check_health(self) -> None:
        """Raises if requests can't be answered: Ray then replaces the replica."""
        if trouble := self.engine.trouble():
            raise RuntimeError(trouble)

    def record_routing_stats(self) -> dict[str, float]:
        """How long a request would wait here, for routers that ask."""
        return {"wait_ms": 1000.0 * self.engine.queue.state()["wait"]}

    def __del__(self) -> None:
        self.engine.stop()


def with_config(model: Model, config: Config) -> Model:
    """The same model on other terms."""
    config = config.fitted(model.levels)
    longest = model.tokenizer.length
    setting = setting_of(config, model.levels, model.setting.forecast, longest=longest)
    return replace(model, config=config, setting=setting.with_workers(model.setting.workers))


def build(args: dict[str, Any]) -> Any:
    """The application of a Serve config: `args` are folder, replicas, threads, CPUs and home."""
    require_ray()
    from ray import serve
    from ray.serve.config import BackpressureConfig

    threads = int(args.get("threads", 1))
    deploying = serve.deployment(
        name="Replica",
        num_replicas=int(args.get("replicas", 1)),
        max_ongoing_requests=_ONGOING,
        max_queued_requests=_QUEUED,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        ray_actor_options={"num_cpus": float(args.get("cpus", threads))},
        graceful_shutdown_timeout_s=30,
        health_check_period_s=2,
    )
    deployment: Any = deploying(serve.ingress()(Replica))
    return deployment.bind(str(args["folder"]), threads, str(args.get("home", ".")))


def serve_config(
    folder: Path,
    tables: Mapping[str, Any],
    *,
    home: Path = Path(),
    replicas: int = 1,
    threads: int = 1,
    cpus: float = 1.0,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> dict[str, Any]:
    """The Serve config of a folder on the terms of a configuration file's tables.

    Ray reconfigures replicas that run if only the tables differ from the last config.
    """
    config_of(tables, home)  # complains here, not in a replica
    arguments = {
        "folder": str(folder.resolve()),
        "home": str(home.resolve()),
        "replicas": replicas,
        "threads": threads,
        "cpus": cpus,
    }
    application = {
        "name": NAME,
        "route_prefix": "/",
        "import_path": _IMPORT,
        "args": arguments,
        "deployments": [{"name": "Replica", "user_config": dict(tables)}],
    }
    return {"http_options": {"host": host, "port": port}, "applications": [application]}


def deploy(config: Mapping[str, Any], *, patience: float = 240.0) -> None:
    """Brings a Serve config to the cluster that the program is connected to, and waits for it.

    It is what `serve run FILE` does. `serve.run` would start all replicas anew each time.
    """
    require_ray()
    from ray import serve
    from ray.serve._private.api import serve_start
    from ray.serve.schema import ServeDeploySchema

    client = serve_start(http_options=dict(config["http_options"]))
    client.deploy_apps(ServeDeploySchema.model_validate(dict(config)))
    end = time.monotonic() + patience
    while (state := serve.status().applications.get(NAME)) is None or state.status != "RUNNING":
        if state is not None and state.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            # Ray's message ends with the last line of a traceback.
            raise ValueError((state.message.strip().splitlines() or [state.status])[-1])
        if time.monotonic() > end:
            raise TimeoutError(f"Ray Serve did not start it in {patience:g} s")
        time.sleep(0.1)
