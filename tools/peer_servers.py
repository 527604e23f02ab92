"""Servers of others around the same model, each from a virtual environment of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from apportion.serving.server.wire import Wire
from apportion.study.server_process import ServerProcess

ROOT = Path(__file__).parents[1]
PEERS = {"litserve": "litserve", "bentoml": "bentoml"}
_NEEDED = ("numpy", "onnxruntime", "tokenizers", "safetensors")


def environment(home: Path, name: str) -> Path:
    """The Python of a peer's environment, which is made the first time."""
    from importlib import metadata

    python = home / name / "bin" / "python"
    if not (home / name / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home / name)], check=True)
        # The runtime in the version that runs here: servers are compared, not runtimes.
        pinned = [f"{one}=={metadata.version(one)}" for one in _NEEDED]
        words = [str(python), "-m", "pip", "install", "--quiet", PEERS[name], *pinned]
        subprocess.run(words, check=True)
        (home / name / "ready").touch()
    return python


def version_of(python: Path, package: str) -> str:
    """The version of a package in an environment."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Asked:
    """A server of any kind at an address: `labels` of texts, by one connection per thread."""

    def __init__(
        self, port: int, path: str, body: dict[str, Any], field: str, version: str, group: int
    ) -> None:
        self.port, self.path, self.body, self.field = port, path, body, field
        self.version, self.group = version, group

    def rest(self) -> None:
        """Stops its processes until `wake`: LitServe's ask for work while there is none."""
        os.killpg(self.group, signal.SIGSTOP)

    def wake(self) -> None:
        """Lets them go on."""
        os.killpg(self.group, signal.SIGCONT)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Lets its processes run for a while."""
        self.wake()
        try:
            yield
        finally:
            self.rest()

    def connect(self) -> http.client.HTTPConnection:
        """A connection that stays open."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def labels(self, connection: http.client.HTTPConnection, texts: Sequence[str]) -> list[str]:
        """What it answers."""
        headers = {"Content-Type": "application/json"}
        connection.request("POST", self.path, self.written(texts), headers)
        reply = connection.getresponse()
        return self.read(reply.status, reply.read())

    def written(self, texts: Sequence[str]) -> bytes:
        """The body that asks for labels of texts."""
        return json.dumps({**self.body, self.field: list(texts)}).encode()

    def read(self, status: int, body: bytes) -> list[str]:
        """The labels in an answer."""
        if status != 200:
            raise ValueError(f"status {status}: {body[:200]!r}")
        told = json.loads(body)
        if isinstance(told, dict):
            told = told.get("labels") or [row["label"] for row in told["data"]]
        return list(told)


@contextmanager
def peer(name: str, folder: Path, *, budget: float, home: Path) -> Iterator[Asked]:
    """A peer's server, which ends with the block."""
    python = environment(home, name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "BENTOML_DO_NOT_TRACK": "True"}
    env |= {"PEER_FOLDER": str(folder.resolve()), "PEER_BUDGET": str(budget)}
    if name == "litserve":
        script = str(ROOT / "tools" / "served_by_litserve.py")
        words = [str(python), script, str(folder.resolve()), str(port), str(budget)]
    else:
        words = [str(python), "-m", "bentoml", "serve", "served_by_bentoml:Peer"]
        words += ["--host", "127.0.0.1", "--port", str(port)]
    log = (home / f"{name}.log").open("w")
    process = subprocess.Popen(
        words, env=env, stdout=log, stderr=log, cwd=ROOT / "tools", start_new_session=True
    )
    try:
        version = version_of(python, PEERS[name])
        asked = Asked(port, "/predict", {}, "texts", version, process.pid)
        end = time.monotonic() + 180
        while True:
            try:
                asked.labels(asked.connect(), ["a text"])
                break
            except (OSError, ValueError, http.client.HTTPException):
                if process.poll() is not None or time.monotonic() > end:
                    raise ValueError(f"{name} did not start: see {log.name}") from None
                time.sleep(0.5)
        yield asked
    finally:
        os.killpg(process.pid, signal.SIGCONT)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        # Workers of LitServe outlive their server: all that it started is in its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


@contextmanager
def own(folder: Path, config: Path, *, budget: float) -> Iterator[Asked]:
    """Our server."""
    from apportion import __version__

    with ServerProcess(folder, config, own_group=True) as server:
        port = int(server.url.rpartition(":")[2])
        body = {"budget": budget, "target_ms": 600_000, "timeout_ms": 600_000}
        try:
            group = server.process.pid
            yield Asked(port, "/v1/classify", body, "input", __version__, group)
        finally:
            os.killpg(group, signal.SIGCONT)


def alone(server: Asked, texts: Sequence[str]) -> list[float]:
    """Milliseconds of one request after the other, one text each.

    By plain sockets: what a client does for HTTP is not the server's.
    """
    took = []
    with Wire("127.0.0.1", server.port, connections=1) as wire:
        for text in texts:
            message = wire.message("alone", server.written([text]), server.path)
            started = time.perf_counter()
            wire.send("alone", message)
            while not (replies := wire.receive(600.0)):
                pass  # a part of it
            took.append(1000 * (replies[0].moment - started))
            server.read(replies[0].status, replies[0].body)
    return took


def saturated(
    server: Asked, texts: Sequence[str], *, clients: int, rows: int, seconds: float
) -> float:
    """Rows a second of so many clients that ask again as soon as they have an answer."""
    start = time.perf_counter()

    def client(first: int) -> int:
        connection, done, place = server.connect(), 0, first * rows
        while time.perf_counter() < start + seconds:
            chosen = [texts[(place + k) % len(texts)] for k in range(rows)]
            done += len(server.labels(connection, chosen))
            place += clients * rows
        connection.close()
        return done

    with ThreadPoolExecutor(clients) as pool:
        answered = sum(pool.map(client, range(clients)))
    return answered / (time.perf_counter() - start)
