"""Chaos for a server: clients that leave, a worker that dies, swaps, an end. Run by serving_goals.

`python tools/serving_chaos.py FOLDER --config … --port …` is the server itself: that of
`apportion serve`, whose worker thread dies at its next batch after each SIGUSR1.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

CONFIG = """
[model]
name = "model"
[machine]
threads = 1
max_wait_s = 100000.0
max_tokens = 100000000
max_rows = 1000000
grace_s = {grace}
[limits]
timeout_ms = 600000.0
[[tier]]
name = "low-cost"
max_budget = 0.25
target_ms = 300.0
[[tier]]
name = "high-quality"
max_budget = 1.0
weight = 64.0
target_ms = 300.0
"""
_CLIENTS, _ROWS = 24, 16
_SURE = 0.2  # a margin at which rounding turns no label


@dataclass
class Count:
    """What clients saw."""

    requests: int = 0
    rows: int = 0
    left: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    seen: list[str] = field(default_factory=list)  # ids that were answered


@dataclass(frozen=True)
class Known:
    """Texts that no level is in doubt about, and the label that each gives them."""

    texts: list[str]
    labels: dict[float, list[str]]


def know(folder: Path, texts: list[str], count: int) -> Known:
    """Asks the model itself, text by text."""
    from apportion.serving.guarantees.cascade import margins_of
    from apportion.serving.runtime.prediction import softmax
    from apportion.serving.runtime.session import Runtime

    runtime = Runtime(folder, threads=1)
    kept: list[str] = []
    labels: dict[float, list[str]] = {level: [] for level in runtime.levels}
    for text in texts:
        inputs = runtime.tokenizer.pad_arrays(runtime.tokenizer.encode([text]))
        said = {level: softmax(runtime(**inputs, budget=level)) for level in runtime.levels}
        if min(margins_of(np.asarray(one, np.float64))[0] for one in said.values()) < _SURE:
            continue
        kept.append(text)
        for level, one in said.items():
            labels[level].append(runtime.classes[int(one[0].argmax())])
        if len(kept) == count:
            break
    if not kept:
        raise ValueError("every text is a near tie at some budget")
    return Known(kept, labels)


class Clients:
    """Clients of one server, which ask until they are told to stop."""

    def __init__(self, url: str, known: Known, draw: random.Random, gone: float) -> None:
        parts = urlsplit(url)
        self.place = str(parts.hostname), int(parts.port or 80)
        self.known, self.draw, self.gone = known, draw, gone
        self.count = Count()
        self.open = 0
        self.ending = False

    async def ask_until(self, rows: int) -> None:
        """Sends requests until so many rows were asked in all."""
        await asyncio.gather(*(self._client(rows) for _ in range(_CLIENTS)))

    async def _client(self, rows: int) -> None:
        while self.count.rows < rows and not self.ending:
            self.count.rows += _ROWS
            self.count.requests += 1
            while not await self._request(f"r{self.count.requests}-{self.draw.random():.9f}"):
                await asyncio.sleep(0.2)

    async def _request(self, number: str) -> bool:
        """One request; false if it was refused and is to be sent again."""
        places = [self.draw.randrange(len(self.known.texts)) for _ in range(_ROWS)]
        body = {"input": [self.known.texts[n] for n in places]}
        body |= {"tier": self.draw.choice(["low-cost", "high-quality"]), "timeout_ms": 600_000}
        leaves = self.draw.random() < self.gone
        self.open += 1
        try:
            asked = self._post(number, body)
            if leaves:
                self.count.left += 1
                with suppress(asyncio.TimeoutError, TimeoutError, OSError, EOFError):
                    await asyncio.wait_for(asked, self.draw.uniform(0.0, 0.2))
                return True
            status, came_back, answer = await asked
        except ConnectionRefusedError:
            if self.ending:  # the port is closed
                self.count.refused += 1
            else:
                self.count.lost += 1
            return True
        except (OSError, EOFError, ValueError):
            self.count.lost += 1  # it was connected, and got no answer
            return True
        finally:
            self.open -= 1
        if status in (429, 503):
            self.count.refused += 1
            return self.ending
        if status != 200:
            self.count.failed += 1
            return True
        self.count.answered += 1
        self.count.seen.append(came_back)
        self.count.twice += came_back != number
        for place, row in zip(places, answer["data"], strict=True):
            self.count.wrong += row["label"] != self.known.labels[row["budget"]][place]
        return True

    async def _post(self, number: str, body: dict[str, Any]) -> tuple[int, str, Any]:
        reader, writer = await asyncio.open_connection(*self.place)
        try:
            data = json.dumps(body).encode()
            head = (
                f"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\nX-Request-Id: {number}\r\n"
                "Connection: close\r\n\r\n"
            )
            writer.write(head.encode() + data)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in answer[1:])}
            found = await reader.readexactly(int(fields["content-length"]))
            return int(answer[0].split()[1]), fields.get("x-request-id", ""), json.loads(found)
        finally:
            writer.close()


async def chaos(folder: Path, texts: list[str], *, rows: int, deaths: int, swaps: int, seed: int):
    """The fields of a chaos record: rows in two halves, then SIGTERM while clients ask."""
    import psutil

    from apportion.study.server_process import ServerProcess

    started, draw = time.monotonic(), random.Random(seed)
    known = know(folder, texts, 200)
    with tempfile.TemporaryDirectory() as home:
        config = Path(home, "tiers.toml")
        config.write_text(CONFIG.format(grace=120.0), encoding="utf-8")
        server = ServerProcess(folder, config, command=[sys.executable, __file__], quiet=False)
        with server:
            clients = Clients(server.url, known, draw, gone=0.2)
            memory = psutil.Process(server.process.pid).memory_info
            events = [signal.SIGUSR1] * deaths + [signal.SIGHUP] * swaps
            draw.shuffle(events)
            trouble = asyncio.ensure_future(_trouble(server, clients, events, rows))
            sizes = []
            for half in (rows // 2, rows):
                await clients.ask_until(half)
                await asyncio.to_thread(_until_idle, server)
                sizes.append(memory().rss / 1e6)
            await trouble
            died = re.search(r"(?m)^apportion_worker_deaths (\S+)", server.ask(path="/metrics"))
            # The end: SIGTERM while all clients wait.
            clients.gone, before = 0.0, clients.count.requests
            last = asyncio.ensure_future(clients.ask_until(rows + 10**9))
            while await asyncio.to_thread(_waiting, server) < _ROWS * _CLIENTS // 2:
                if clients.count.requests > before + 100 * _CLIENTS:
                    break  # it answers as fast as it is asked
            ending = clients.open
            clients.ending = True
            server.send(signal.SIGTERM)
            await last
            code = await asyncio.to_thread(server.end, asked=True)
        swapped = sum("swapped: requests" in line for line in server.said)
        twice = _twice(server.said)
    count = clients.count
    assert len(count.seen) == count.answered
    return {
        "rows": count.requests * _ROWS,
        "requests": count.requests,
        "left": count.left,
        "deaths": int(float(died[1])) if died else -1,
        "swaps": swapped,
        "answered": count.answered,
        "refused": count.refused,
        "failed": count.failed,
        "lost": count.lost,
        "twice": count.twice + twice + len(count.seen) - len(set(count.seen)),
        "wrong": count.wrong,
        "ending": ending,
        "code": code,
        "first_mb": round(sizes[0], 1),
        "second_mb": round(sizes[1], 1),
        "seconds": round(time.monotonic() - started, 1),
        "seed": seed,
    }


async def abandoned(folder: Path, texts: list[str], *, rows: int, seed: int) -> dict[str, Any]:
    """The fields of a record of abandoned work: all clients wait, half of them do, all do again."""
    from apportion.study.server_process import ServerProcess

    draw, known = random.Random(seed), know(folder, texts, 200)
    answered, spent = [], []
    with tempfile.TemporaryDirectory() as home:
        config = Path(home, "tiers.toml")
        config.write_text(CONFIG.format(grace=120.0), encoding="utf-8")
        with ServerProcess(folder, config) as server:
            for gone in (0.0, 0.5, 0.0):
                before = _batch_seconds(server)
                clients = Clients(server.url, known, draw, gone=gone)
                await clients.ask_until(rows)
                await asyncio.to_thread(_until_idle, server)
                count = clients.count
                answered.append(round(count.answered / (count.requests - count.left), 4))
                after = _batch_seconds(server)
                spent.append([now - then for now, then in zip(after, before, strict=True)])
                if gone:
                    requests, left = count.requests, count.left
    return {
        "rows": rows,
        "requests": requests,
        "left": left,
        "answered": answered,
        "spent_s": round(spent[1][0], 3),
        "wasted_s": round(spent[1][1], 3),
        "seed": seed,
    }


def _batch_seconds(server: Any) -> list[float]:
    """Seconds of all batches so far, and of them those that nobody waited for."""
    shown = server.ask(path="/metrics")
    found = [
        re.search(rf"(?m)^apportion_{name}_seconds (\S+)", shown) for name in ("batch", "wasted")
    ]
    return [float(one[1]) for one in found if one]


async def _trouble(server: Any, clients: Clients, events: list[signal.Signals], rows: int) -> None:
    """Each event once its share of the rows was asked; a swap is waited for."""
    for place, event in enumerate(events, 1):
        while clients.count.rows < rows * place / (len(events) + 1):
            await asyncio.sleep(0.05)
        said = len(server.said)
        server.send(event)
        if event == signal.SIGHUP:
            await asyncio.to_thread(lambda s=said: server.wait_for("swapped", since=s, seconds=120))


def _waiting(server: Any) -> int:
    return int(server.ask(path="/v1/forecast")["queue"]["rows"])


def _until_idle(server: Any) -> None:
    while _waiting(server):
        time.sleep(0.1)
    time.sleep(1.0)


def _twice(said: list[str]) -> int:
    """Ids that the server's log has more than once; a request that was sent again has another."""
    ids: Counter[str] = Counter()
    for line in said:
        if line.startswith('{"id"'):
            noted = json.loads(line)
            if noted["status"] == 200:
                ids[noted["id"]] += 1
    return sum(n - 1 for n in ids.values())


def drained(folder: Path, texts: list[str], *, grace: float, multiple: float) -> dict[str, Any]:
    """The fields of a drain record: SIGTERM with so many times the grace period in the queue."""
    from apportion.study.server_process import ServerProcess

    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as home:
        config = Path(home, "tiers.toml")
        config.write_text(CONFIG.format(grace=grace), encoding="utf-8")
        with ServerProcess(folder, config) as server:
            return asyncio.run(_drain(server, texts, grace, multiple, busy))


async def _drain(server: Any, texts: list[str], grace: float, multiple: float, busy: float):
    clients = Clients(server.url, Known(texts, {}), random.Random(0), 0.0)
    took = []
    for n in range(5):
        started = time.monotonic()
        chosen = [texts[(16 * n + k) % len(texts)] for k in range(16)]
        server.ask({"input": chosen, "budget": 1.0, "target_ms": 60_000})
        took.append(time.monotonic() - started)
    ms = 1000 * sorted(took)[2] / 16  # of a row at the whole budget
    requests = max(1, round(multiple * grace * 1000 / ms / _ROWS))
    body = {"tier": "high-quality", "target_ms": 1e6, "timeout_ms": 600_000}
    asked = [
        asyncio.ensure_future(
            clients._post(
                f"d{n}", {**body, "input": [texts[(n + k) % len(texts)] for k in range(16)]}
            )
        )
        for n in range(requests)
    ]
    while await asyncio.to_thread(_waiting, server) < _ROWS * (requests - 3):
        if sum(one.done() for one in asked) > requests // 10:
            break  # it answers as fast as it is asked
    done = sum(one.done() for one in asked)
    left = asked[done:]
    start = time.monotonic()
    server.send(signal.SIGTERM)
    ends: list[float] = []
    for one in left:
        one.add_done_callback(lambda _: ends.append(time.monotonic() - start))
    ready = None
    budgets: list[float] = []
    while not all(one.done() for one in left):
        if ready is None:
            try:
                await asyncio.to_thread(server.ask, path="/readyz")
            except (OSError, ValueError):
                ready = time.monotonic() - start
        await asyncio.sleep(0.005)
    good = 0
    for one in left:
        with suppress(OSError, EOFError, ValueError):
            status, _, answer = one.result()
            if status == 200:
                good += 1
                budgets.append(answer["apportion"]["budget"])
    code = await asyncio.to_thread(server.end, asked=True)
    return {
        "grace_s": grace,
        "queued_s": round(len(left) * _ROWS * ms / 1000, 2),
        "multiple": multiple,
        "rows": len(left) * _ROWS,
        "answered": good * _ROWS,
        "last_s": round(max(ends, default=0.0), 3),
        "ended_s": round(time.monotonic() - start, 3),
        "ready_ms": round(1000 * (ready if ready is not None else -1.0), 1),
        "mean_budget": round(float(np.mean(budgets)) if budgets else 0.0, 4),
        "code": code,
        "busy": round(busy, 2),
    }


def serve_with_faults() -> None:
    """`apportion serve`, whose worker dies at its next batch after SIGUSR1."""
    from apportion.cli import main
    from apportion.serving.server import lifetime

    due = [0]
    signal.signal(signal.SIGUSR1, lambda *_: due.__setitem__(0, due[0] + 1))
    load = lifetime.load_model

    def load_mortal(*args: Any, **options: Any) -> Any:
        model = load(*args, **options)
        runtime = model.runtime

        def mortal(**inputs: Any) -> Any:
            if due[0]:
                due[0] -= 1
                raise SystemExit("the worker dies")
            return runtime(**inputs)

        return replace(model, runtime=mortal)

    lifetime.load_model = load_mortal
    sys.argv[1:1] = ["serve"]
    main()


if __name__ == "__main__":
    serve_with_faults()
