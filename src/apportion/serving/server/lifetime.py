"""A server from start to end: the socket, the model, signals, the drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from apportion.extras import missing
from apportion.files import first_line
from apportion.serving.server.addresses import is_loopback
from apportion.serving.server.admitted import Model
from apportion.serving.server.engine import ServingEngine, load_model
from apportion.serving.server.keys import keyring_of
from apportion.serving.server.promise import UNPROMISED, Promise
from apportion.serving.server.terms import Config

try:
    import uvicorn

    from apportion.serving.server.app import build_app
except ModuleNotFoundError as error:
    raise ValueError(missing(error)) from None

_TICK = 0.02  # seconds between looks at whether the queue is empty


def run_server(
    folder: Path,
    read_config: Callable[[], Config],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    anyone: bool = False,
    quiet: bool = False,
    watching: Callable[[], AbstractContextManager[Callable[[int, int], None] | None]] = nullcontext,
    tell: Callable[[str], None] = lambda said: None,
) -> None:
    """Serves a folder until SIGTERM or SIGINT. Complaints come before the model is loaded.

    `watching` shows how far a calibration is, if there has to be one.
    """

    def read_safe() -> Config:
        config = read_config()
        if not is_loopback(host) and config.keys is None and not anyone:
            raise ValueError(
                f"{host} can be reached from elsewhere, and there are no keys: give [keys] a file "
                "in the configuration, or say --open"
            )
        return config

    config = read_safe()
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    with _bound(host, port) as bound:
        # Or a thread that computes keeps the event loop waiting for 5 ms at a time.
        sys.setswitchinterval(5e-4)
        _Lifetime(folder, read_safe, config, bound, quiet, tell).run(watching)


class _Lifetime:
    """One server process: what its signals act on."""

    def __init__(
        self,
        folder: Path,
        read_config: Callable[[], Config],
        config: Config,
        bound: socket.socket,
        quiet: bool,
        tell: Callable[[str], None],
    ) -> None:
        self.folder, self.read_config, self.config = folder, read_config, config
        self.bound, self.tell = bound, tell
        log = logging.getLogger("apportion.access")
        log.setLevel(logging.CRITICAL if quiet else logging.INFO)
        log.propagate = False
        log.handlers = [logging.StreamHandler(sys.stderr)]
        self.swapping = self.asked_again = False

    def run(
        self, watching: Callable[[], AbstractContextManager[Callable[[int, int], None] | None]]
    ) -> None:
        """Loads the model and serves it until a signal."""
        keyring = keyring_of(self.config)
        with watching() as progress:
            model = load_model(self.folder, self.config, progress=progress)
        self.engine = ServingEngine(model)
        name = self.config.name or self.folder.resolve().name.replace(":", "-") or "model"
        app = build_app(self.engine, name=name, keyring=keyring)
        self.service = app.state.service
        settings = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
        )
        server = _Server(settings, self)
        self.engine.start()
        address, number = self.bound.getsockname()[:2]
        where = f"[{address}]" if ":" in address else address
        setting = model.setting
        self.tell(
            f"serving {name} at http://{where}:{number}/ "
            f"({model.identity.get('runtime', '')}, {setting.workers} workers)"
        )
        _tell_promise(model, self.tell)
        # What is there now stays: a collection that looked through all of it would stop every
        # thread for tens of milliseconds.
        gc.collect()
        gc.freeze()
        try:
            server.run(sockets=[self.bound])
        finally:
            self.engine.stop()

    async def swap(self) -> None:
        """Reads folder and configuration again; if anything is wrong, the old model goes on."""
        if self.swapping:  # what is being read may be older than what is there now
            self.asked_again = True
            return
        self.swapping = True
        try:
            await self._swap()
        except Exception as error:  # whatever it is, there is a model that works
            self.tell(f"not swapped, the running model goes on: {first_line(error)}")
        finally:
            self.swapping = False
        if self.asked_again:
            self.asked_again = False
            await self.swap()

    async def _swap(self) -> None:
        config = self.read_config()
        keyring = keyring_of(config)
        model = await asyncio.to_thread(load_model, self.folder, config)
        self.engine.swap(model)
        self.config, self.service.keyring = config, keyring
        self.service.name = config.name or self.service.name
        self.tell("swapped: requests from now on are answered by the new model")
        _tell_promise(model, self.tell)


def _tell_promise(model: Model, tell: Callable[[str], None]) -> None:
    """Whether requests may ask for a certificate; a folder without one needs no word."""
    if isinstance(model.promise, Promise):
        made = model.promise.certificate
        tell(
            f"certified: at most {100 * made.disagree_at_most:g} % of the answers that ask for it "
            f"differ from the whole model's, with a confidence of {100 * made.confidence:g} %"
        )
    elif model.promise is not UNPROMISED:
        tell(model.promise.why)


class _Server(uvicorn.Server):
    """Uvicorn's server, which waits for the queue to empty before it stops listening."""

    def __init__(self, settings: uvicorn.Config, lifetime: _Lifetime) -> None:
        super().__init__(settings)
        self._lifetime = lifetime
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves; SIGHUP swaps the model."""
        self._loop = asyncio.get_running_loop()
        if hasattr(signal, "SIGHUP"):
            swap = self._lifetime.swap
            self._loop.add_signal_handler(signal.SIGHUP, lambda: self._start(swap()))
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains the queue; a second one ends at once."""
        assert self._loop is not None
        if self._lifetime.engine.closing:
            self.should_exit = self.force_exit = True
        else:  # not here: a signal may come while the queue's lock is held
            self._loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        self._lifetime.engine.drain(self._lifetime.config.machine.grace_s)
        self._start(self._end())

    async def _end(self) -> None:
        engine, loop = self._lifetime.engine, asyncio.get_running_loop()
        stop = loop.time() + self._lifetime.config.machine.grace_s
        while not engine.is_idle() and loop.time() < stop:
            await asyncio.sleep(_TICK)
        engine.queue.give_up()
        await asyncio.sleep(_TICK)  # the last answers go out
        self.should_exit = True

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)  # or it could be collected before it ends
        task.add_done_callback(self._tasks.discard)


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    if not 0 <= port <= 65535:
        raise ValueError(f"a port is a number from 0 to 65535, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as made:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, port))
            made.listen(2048)
        except OSError as error:
            raise ValueError(
                f"can't listen at {host}, port {port}: {error.strerror or error}; "
                "choose another --port or --host"
            ) from None
        yield made
