"""A cluster of Ray on this machine, until Ctrl-C: two nodes, and the address to give to commands.

    python tools/ray_cluster.py --nodes 2 --cpus 1
    apportion predict FOLDER texts.csv --engine ray --address 127.0.0.1:6399 --out labels.csv

It does what `ray start --head` and `ray start --address=…` do on two machines. Nodes of one machine
share its cores, so this shows that a job survives the loss of a node, not that it gets faster.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from apportion.serving.batch.ray_cluster import require_ray

_STARTED = "Ray runtime started"  # what a node says once it is part of the cluster


class Nodes:
    """The nodes of a cluster, one process of `ray start --block` each."""

    def __init__(self, port: int, cpus: int) -> None:
        self.port, self.cpus = port, cpus
        self._home = Path(tempfile.mkdtemp())
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """What --address takes."""
        return f"127.0.0.1:{self.port}"

    def add(self, patience: float = 240.0) -> None:
        """Starts a node, the first as the head, and waits until it is there."""
        beside = Path(sys.executable).with_name("ray")
        ray = str(beside) if beside.exists() else shutil.which("ray") or "ray"
        head = ["--head", f"--port={self.port}", "--include-dashboard=false"]
        where = [f"--address={self.address}"] if self.processes else head
        words = [ray, "start", *where, f"--num-cpus={self.cpus}", "--block"]
        words += ["--object-store-memory=100000000", "--disable-usage-stats"]
        log = self._home / f"node-{len(self.processes)}-{time.monotonic_ns()}.log"
        with log.open("w") as told:
            node = subprocess.Popen(words, stdout=told, stderr=subprocess.STDOUT)
        self.processes.append(node)
        until = time.monotonic() + patience
        while _STARTED not in log.read_text(errors="replace"):
            if node.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"`{' '.join(words)}` did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)

    def stop(self) -> None:
        """Ends the nodes, the head last."""
        for node in reversed(self.processes):
            node.send_signal(signal.SIGTERM)
            try:
                node.wait(30)
            except subprocess.TimeoutExpired:
                node.kill()
        shutil.rmtree(self._home, ignore_errors=True)


@contextlib.contextmanager
def running(nodes: int = 2, *, cpus: int = 1, port: int = 6399) -> Iterator[Nodes]:
    """A cluster inside."""
    require_ray()  # sets what nodes and drivers have to agree about
    cluster = Nodes(port, cpus)
    try:
        for _ in range(nodes):
            cluster.add()
        yield cluster
    finally:
        cluster.stop()


def main() -> None:
    """Starts the cluster, prints its address and waits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=1, help="of each node")
    parser.add_argument("--port", type=int, default=6399)
    asked = parser.parse_args()
    with running(asked.nodes, cpus=asked.cpus, port=asked.port) as cluster:
        print(cluster.address, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
