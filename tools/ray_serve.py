"""A server on Ray Serve on this machine, until Ctrl-C: `python tools/ray_serve.py FOLDER`.

    python tools/ray_serve.py runs/mine/onnx --config tiers.toml --replicas 2 --port 8000

SIGHUP reads the configuration again: tiers, limits, keys and policy change while replicas run. At
another address than loopback there must be keys, or `--open`.
`--write serve.yaml` writes the Serve config and starts nothing; `serve deploy serve.yaml` brings it
to a cluster, and `deploy/rayservice.yaml` has it for Kubernetes.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from apportion.files import first_line, write_text
from apportion.serving.batch.ray_cluster import connected
from apportion.serving.server.ray_serving import deploy, serve_config


def main() -> None:
    """Starts, reconfigures and ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each replica")
    parser.add_argument("--cpus", type=float, default=0.8, help="that each replica claims")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes one that is free")
    parser.add_argument("--open", action="store_true", help="to the network without keys")
    parser.add_argument("--address", help="of a cluster; without it, one of this machine")
    parser.add_argument("--write", type=Path, help="a file for the Serve config")
    asked = parser.parse_args()
    if not asked.folder.is_dir():
        raise SystemExit(f"there is no folder {asked.folder}")
    if asked.port == 0:
        with socket.socket() as free:
            free.bind((asked.host, 0))
            asked.port = free.getsockname()[1]

    def config() -> dict[str, Any]:
        tables: dict[str, Any] = {}
        if asked.config is not None:
            tables = tomllib.loads(asked.config.read_text(encoding="utf-8"))
        return serve_config(
            asked.folder,
            tables,
            home=asked.config.parent if asked.config else Path(),
            replicas=asked.replicas,
            threads=asked.threads,
            cpus=asked.cpus,
            host=asked.host,
            port=asked.port,
            anyone=asked.open,
        )

    try:
        first = config()
    except (OSError, ValueError) as error:
        raise SystemExit(first_line(error)) from None
    if asked.write is not None:
        write_text(asked.write, json.dumps(first, indent=2) + "\n")  # JSON is YAML
        return
    woken, again = threading.Event(), threading.Event()

    def wake(number: int, _: object) -> None:
        (again if number == signal.SIGHUP else stop).set()
        woken.set()

    stop = threading.Event()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, wake)
    with connected(asked.address) as ray:
        deploy(first)
        name = asked.folder.resolve().name
        where = f"http://{asked.host}:{asked.port}/"
        print(f"serving {name} at {where} on Ray", file=sys.stderr, flush=True)
        while not stop.is_set():
            woken.wait(1.0)
            woken.clear()
            if again.is_set():
                again.clear()
                try:
                    deploy(config())
                    print("reconfigured", file=sys.stderr, flush=True)
                except Exception as error:  # what runs goes on
                    print(f"not reconfigured: {first_line(error)}", file=sys.stderr, flush=True)
        from ray import serve

        serve.shutdown()
        assert ray.is_initialized()


if __name__ == "__main__":
    main()
