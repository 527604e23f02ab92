"""The server on Ray Serve: the same application in each replica, reconfigured while it runs.

Ray's own batching is not used: it waits for batches, first come first served. Requests are let
through to the engine of a replica, where the policy sees them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from apportion.files import first_line
from apportion.serving.batch.ray_cluster import require_ray
from apportion.serving.runtime.session import Runtime
from apportion.serving.server.addresses import is_loopback
from apportion.serving.server.admitted import Model
from apportion.serving.server.app import build_app
from apportion.serving.server.configuration import config_of
from apportion.serving.server.engine import ServingEngine, load_model, setting_of
from apportion.serving.server.keys import Keyring, keyring_of
from apportion.serving.server.promise import CERTIFICATE, find_promise
from apportion.serving.server.terms import Capacity, Config

NAME = "apportion"  # of the application
_IMPORT = "apportion.serving.server.ray_serving:build"
_ONGOING, _QUEUED = 512, 1024  # requests in a replica, and before all of them
_NO_TABLES = ("folder", "files")  # of `user_config`; the rest of it is a configuration file's
_NOT_HERE = {
    "workers": "a replica has one worker, so give more replicas",
    "threads": "give a replica's threads beside its folder, by --threads or `args`",
    "grace_s": "set graceful_shutdown_timeout_s of the deployment",
}
_log = logging.getLogger("ray.serve")  # whose lines name their replica


class Replica:
    """One engine and its application; Ray starts it, asks how it is, and reconfigures it."""

    def __init__(
        self, folder: str, threads: int = 1, home: str = ".", anyone: bool = False
    ) -> None:
        # Or a thread that computes keeps the event loop waiting for 5 ms at a time.
        sys.setswitchinterval(5e-4)
        self.folder, self.home, self.anyone = folder, Path(home), anyone
        self.machine = Capacity(workers=1, threads=threads)
        self.engine = ServingEngine(load_model(Path(folder), Config(machine=self.machine)))
        self.engine.start()
        self._application: Any = None
        self._configured = False

    def __serve_build_asgi_app__(self) -> Any:
        name = Path(self.folder).resolve().name.replace(":", "-") or "model"
        # A Serve config may have no `user_config`: then nobody is let in.
        keyring = None if self.anyone else Keyring(())
        self._application = build_app(self.engine, name=name, keyring=keyring)
        return self._application

    async def reconfigure(self, given: Mapping[str, Any]) -> None:
        """Takes other tiers, limits, keys or another policy; a `folder` is swapped in.

        What is given are the tables of a configuration file. Requests that wait keep their terms.
        If anything is wrong, what runs goes on.
        """
        try:
            await self._reconfigure(given)
            self._configured = True
        except Exception as error:
            if not self._configured:
                raise  # a replica that starts has nothing to go on with
            # Ray would stop a replica that raises.
            _log.error("not reconfigured, the running model goes on: %s", first_line(error))

    async def _reconfigure(self, given: Mapping[str, Any]) -> None:
        tables = {name: value for name, value in given.items() if name not in _NO_TABLES}
        config = terms_of(tables, self.home, anyone=self.anyone)
        # Threads are what the replica was given CPUs for.
        own = self.machine
        machine = replace(config.machine, workers=own.workers, threads=own.threads)
        config = replace(config, machine=machine)
        keyring = keyring_of(config)
        folder = str(given.get("folder", self.folder))
        if folder != self.folder:
            model = await asyncio.to_thread(load_model, Path(folder), config)
        else:
            model = with_config(self.engine.queue.model, config, Path(folder))
        self.engine.swap(model)
        self.folder = folder
        service = self._application.state.service
        service.keyring = keyring
        service.name = config.name or service.name

    def check_health(self) -> None:
        """Raises if requests can't be answered: Ray then replaces the replica."""
        if trouble := self.engine.trouble():
            raise RuntimeError(trouble)

    def record_routing_stats(self) -> dict[str, float]:
        """How long a request would wait here, for routers that ask."""
        return {"wait_ms": 1000.0 * self.engine.queue.state()["wait"]}

    def __del__(self) -> None:
        self.engine.stop()


def terms_of(tables: Mapping[str, Any], home: Path, *, anyone: bool) -> Config:
    """The configuration in a file's tables, if it is one for Ray. `anyone` may ask without keys."""
    config = config_of(tables, home)
    for name, instead in _NOT_HERE.items():
        if name in tables.get("machine", {}):
            raise ValueError(f"[machine] {name} is not read on Ray: {instead}")
    if config.keys is None and not anyone:
        raise ValueError(
            "there are no keys: give [keys] a file in the configuration, or say that anyone may "
            "ask, by --open or `open` beside the folder in `args`"
        )
    return config


def with_config(model: Model, config: Config, folder: Path) -> Model:
    """The same model, of that folder, on other terms."""
    config = config.fitted(model.levels)
    longest = model.tokenizer.length
    setting = setting_of(config, model.levels, model.setting.forecast, longest=longest)
    told, runtime = config.promised, cast(Runtime, model.runtime)
    promise = find_promise(runtime, folder, file=told.file, share=told.audit)
    setting = setting.with_workers(model.setting.workers)
    return replace(model, config=config, setting=setting, promise=promise)


def build(args: dict[str, Any]) -> Any:
    """The application of a Serve config: `args` are folder, replicas, threads, CPUs, home, and
    whether it is open to those without keys.
    """
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
    home, anyone = str(args.get("home", ".")), bool(args.get("open", False))
    return deployment.bind(str(args["folder"]), threads, home, anyone)


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
    anyone: bool = False,
) -> dict[str, Any]:
    """The Serve config of a folder on the terms of a configuration file's tables.

    Ray reconfigures replicas that run if only the tables, or files that they name, differ from the
    last config. Complaints come here, before any replica hears of it. At an address of the network
    there must be keys, unless `anyone` may ask.
    """
    config = terms_of(tables, home, anyone=True)
    if not (anyone := anyone or is_loopback(host)) and config.keys is None:
        raise ValueError(
            f"{host} can be reached from elsewhere, and there are no keys: give [keys] a file in "
            "the configuration, or say --open"
        )
    runtime, told = Runtime(folder), config.promised
    config.fitted(runtime.levels)
    find_promise(runtime, folder, file=told.file, share=told.audit)
    keyring_of(config)
    read = (config.keys, told.file or folder / CERTIFICATE)
    arguments = {
        "folder": str(folder.resolve()),
        "home": str(home.resolve()),
        "replicas": replicas,
        "threads": threads,
        "cpus": cpus,
        "open": anyone,
    }
    application = {
        "name": NAME,
        "route_prefix": "/",
        "import_path": _IMPORT,
        "args": arguments,
        # Ray passes on what differs: other keys in a file of the same name do not, their hash does.
        "deployments": [{"name": "Replica", "user_config": {**tables, "files": _digest(read)}}],
    }
    return {"http_options": {"host": host, "port": port}, "applications": [application]}


def _digest(files: Iterable[Path | None]) -> str:
    """A hash of what is in some files, those left out that are not there."""
    there = [file.read_bytes() for file in files if file is not None and file.is_file()]
    hashes = [hashlib.sha256(content).hexdigest() for content in there]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()


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
