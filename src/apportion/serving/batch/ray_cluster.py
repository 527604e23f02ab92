"""Ray, found or started: a cluster at an address, or one of this machine for as long as needed."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

from apportion.extras import require
from apportion.files import first_line

_QUICK, _PATIENT = 2.0, 8.0  # seconds to wait for a port to answer, and for Ray behind it
# Milliseconds that an idle worker is kept. Ray keeps as many as there are CPUs that nobody took,
# and actors take nearly all: readers and writers would start anew with all imports, block by block.
_IDLE = 60_000
_OBJECTS = 256 * 2**20  # bytes of shared memory on a machine of one's own: blocks are small
# What a client of HTTP/2 says first, and empty settings; a server of gRPC, as Ray's is, answers
# with its own settings.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


def require_ray() -> ModuleType:
    """The library, which reports nothing to its makers; a sentence where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A task without GPUs is to leave the variables of GPUs alone, as Ray will do by itself soon.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # `ray start --head` asks for a token as soon as there is one, as any local cluster leaves it;
    # whoever joins has to be told so.
    if _has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    ray: ModuleType = require("ray")
    return ray


def _has_token() -> bool:
    """Whether there is a token of Ray's where Ray looks for one."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token")
    return "RAY_AUTH_TOKEN" in os.environ or Path(path).is_file()


@contextmanager
def connected(address: str | None = None, *, cpus: int | None = None) -> Iterator[ModuleType]:
    """Ray inside: the cluster at an address, or one started on this machine and ended again.

    A program that is connected already stays so; an address must answer all the same.
    """
    ray = require_ray()
    if address is not None:
        check_answers(address)
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        quiet |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": _OBJECTS}
        quiet["_system_config"] = {"idle_worker_killing_time_threshold_ms": _IDLE}
    try:
        ray.init(address=address or "local", **quiet)
    except Exception as error:  # of many kinds: no such cluster, another version, a busy machine
        if address is None:
            raise OSError(f"Ray did not start on this machine: {first_line(error)}") from error
        raise ValueError(f"no Ray at {address!r}: {first_line(error)}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_answers(address: str) -> None:
    """Complains within 15 s of an address without Ray, where Ray itself would try for minutes."""
    if address == "auto":
        return  # Ray looks for a cluster on this machine, and complains at once
    host, colon, port = address.rpartition(":")
    if "://" in address or not (host and colon and port.isdecimal()):
        raise ValueError(f"an address of Ray is host:port or auto, not {address!r}")
    nothing = f"no Ray answers at {address!r}; `ray start --head` prints the address of a cluster"
    host = host.strip("[]")
    if not _within(2 * _QUICK, lambda: _greets(host, port)) or not _has_cluster(address):
        raise ValueError(nothing)


def _greets(host: str, port: str) -> bool:
    """Whether somebody who speaks gRPC listens there."""
    with socket.create_connection((host, int(port)), timeout=_QUICK) as connection:
        connection.sendall(_HELLO)
        answer = connection.recv(9)
    return len(answer) >= 4 and answer[3] == _SETTINGS


def _has_cluster(address: str) -> bool:
    """Whether the server at an address is a cluster's own: other servers speak gRPC, too."""
    # Ray has no public way to ask that ends in time.
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    return _within(_PATIENT, lambda: GcsClient(address=address) is not None)


def _within(seconds: float, ask: Callable[[], bool]) -> bool:
    """What somebody says who may take longer than that, as a look at a name does.

    False if he does, or fails.
    """
    found: list[bool] = []

    def run() -> None:
        with suppress(Exception):
            found.append(ask())

    asking = Thread(target=run, daemon=True)
    asking.start()
    asking.join(seconds)
    return bool(found and found[0])
