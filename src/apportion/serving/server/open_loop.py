"""Load for a server on this machine: requests at times that are fixed beforehand, and a count.

Open loop: a slow server does not slow down its clients. Latency counts from the time at which a
request was to be sent, so that a client which is late itself hides nothing.
"""

from __future__ import annotations

import asyncio
import csv
import ipaddress
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from apportion.serving.server.replay import gaps

MOST = 100_000  # requests of one run
LONGEST = 600.0  # seconds of one run
LATE_CLIENT = 0.005  # a client later than this at its 99th percentile measured itself
_PRIORITY = -10  # which only root may take
_OPEN = 256  # connections that are opened before the first request
_IDLE = 25.0  # seconds after which a connection is not used again; our server hangs up after 30
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter, float]  # when it was used last


@dataclass(frozen=True)
class Shot:
    """A request and when it is to be sent, in seconds from the start."""

    number: str
    time: float
    body: dict[str, Any]
    target_ms: float
    labels: tuple[str, ...] = ()  # what is right, where somebody knows


@dataclass(frozen=True)
class Hit:
    """What became of a request."""

    shot: Shot
    status: int  # 0: no answer
    latency: float  # from the time at which it was to be sent
    lateness: float  # of the client
    number: str  # the id that came back
    told: dict[str, Any]
    labels: tuple[str, ...] = ()  # what was answered

    @property
    def right(self) -> int:
        """Rows that were answered right; what was not answered is wrong."""
        return sum(one == other for one, other in zip(self.labels, self.shot.labels, strict=False))


_Reply = tuple[Shot, int, float, float, str, bytes]  # status, latency, lateness, id, body


def send_times(trace: str, *, rate: float, seconds: float, seed: int = 0) -> list[float]:
    """When to send: `poisson`, `gamma:CV2`, or the times in a CSV file, at a mean rate."""
    if not 0.0 < rate < 1e5 or not 0.0 < seconds <= LONGEST:
        raise ValueError(f"a run has a rate above 0 and {LONGEST:g} s at most")
    count = int(rate * seconds) + 1
    if count > MOST:
        raise ValueError(f"{count} requests are more than {MOST}: lower the rate or the time")
    word, _, spread = trace.partition(":")
    if word == "poisson":
        spaces = gaps(count, rate=rate, cv2=1.0, seed=seed)
    elif word == "gamma":
        try:
            cv2 = float(spread)
        except ValueError:
            cv2 = 0.0
        if not 0.0 < cv2 < 1e4:
            raise ValueError(
                f"gamma needs a squared coefficient of variation, as gamma:8, not {trace!r}"
            )
        spaces = gaps(count, rate=rate, cv2=cv2, seed=seed)
    else:
        spaces = _gaps_of_file(Path(trace), rate, count, seed)
    times, now = [], 0.0
    for space in spaces:
        now += space
        if now < seconds:
            times.append(now)
    return times


def _gaps_of_file(path: Path, rate: float, count: int, seed: int) -> list[float]:
    """Gaps of a stretch of the file, in their order, scaled to the rate."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            column = [row["TIMESTAMP"] for row in csv.DictReader(file)]
        stamps = [_seconds(word) for word in column]
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path} has no column TIMESTAMP with times: {error}") from None
    if len(stamps) < 3:
        raise ValueError(f"{path} has fewer than three times")
    found = [max(0.0, later - one) for one, later in pairwise(stamps)]
    start = random.Random(seed).randrange(max(len(found) - count, 1))
    chosen = (found[start:] + found)[:count]
    mean = sum(chosen) / len(chosen) or 1.0
    return [space / mean / rate for space in chosen]


def _seconds(word: str) -> float:
    whole, _, part = word.strip().partition(".")
    return datetime.fromisoformat(whole).timestamp() + float(f"0.{part or 0}")


async def fire(url: str, shots: Sequence[Shot], *, wait: float = 60.0) -> list[Hit]:
    """Sends every shot at its time to a server on this machine; waits for all answers."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if host != "localhost" and not _is_loopback(host):
        raise ValueError(f"load is for a server on this machine, not for {host}")
    if len(shots) > MOST or max((one.time for one in shots), default=0.0) > LONGEST:
        raise ValueError(f"a run has {MOST} requests and {LONGEST:g} s at most")
    pool = _Pool(host, port)
    await pool.open(min(_OPEN, len(shots)))
    # Bodies are written before the first is sent and read after the last came: between bursts
    # there is time for that, in a burst there is not.
    ready = [(shot, pool.message(shot)) for shot in sorted(shots, key=lambda one: one.time)]
    start = time.perf_counter() + 0.1
    tasks = []
    with _in_front():
        for shot, message in ready:
            await _until(start + shot.time)
            # Written here and now: tasks would come to it only after the burst.
            sent = pool.send(message)
            late = time.perf_counter() - start - shot.time
            asked = pool.receive(sent) if sent else pool.post(message)
            tasks.append(asyncio.ensure_future(_one(asked, shot, late, start, wait)))
        replies = await asyncio.gather(*tasks)
    pool.close()
    return [_hit(reply) for reply in replies]


@contextmanager
def _in_front() -> Iterator[None]:
    """Lets this process run before others where it may: clients of a busy machine come late."""
    if not hasattr(os, "setpriority"):
        yield
        return
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


async def saturate(
    url: str, bodies: Sequence[dict[str, Any]], *, clients: int, seconds: float
) -> float:
    """Answered rows a second of so many clients, each of which asks again when it has an answer."""
    parts = urlsplit(url)
    pool = _Pool(parts.hostname or "", parts.port or 80)
    rows, count = 0, 0
    start = time.perf_counter()

    async def client(first: int) -> None:
        nonlocal rows, count
        place = first
        while time.perf_counter() < start + seconds:
            body = bodies[place % len(bodies)]
            status, _, _ = await pool.post(pool.message(Shot(f"s{place}", 0.0, body, 0.0)))
            if status != 200:
                raise ValueError(f"a server that was to be saturated answered {status}")
            rows, count, place = rows + len(body["input"]), count + 1, place + clients

    await asyncio.gather(*(client(one) for one in range(clients)))
    pool.close()
    return rows / (time.perf_counter() - start)


async def _until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0.0:
        # The loop wakes up about a millisecond late: the rest is waited for by turns.
        await asyncio.sleep(max(left - 0.0015, 0.0))


async def _one(
    asked: Awaitable[tuple[int, str, bytes]], shot: Shot, late: float, start: float, wait: float
) -> _Reply:
    try:
        status, number, body = await asyncio.wait_for(asked, wait)
    except (OSError, asyncio.TimeoutError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        status, number, body = 0, "", b""
    return shot, status, time.perf_counter() - start - shot.time, late, number, body


def _hit(reply: _Reply) -> Hit:
    """What a reply says; of one that is no answer, nothing."""
    shot, status, latency, lateness, number, body = reply
    if status != 200:
        return Hit(shot, status, latency, lateness, number, {})
    found = json.loads(body)
    labels = tuple(row["label"] for row in found["data"])
    return Hit(shot, status, latency, lateness, number, found.get("apportion", {}), labels)


class _Pool:
    """Connections that stay open; one more is opened when none is free.

    A server hangs up on those that nobody used for a while, which is no loss of the next request:
    as every client of HTTP does, it takes another connection.
    """

    def __init__(self, host: str, port: int) -> None:
        self._place = host, port
        self._free: list[_Connection] = []

    async def open(self, count: int) -> None:
        """Opens connections before they are needed."""
        now = time.monotonic()
        for _ in range(count):
            self._free.append((*await asyncio.open_connection(*self._place), now))

    def message(self, shot: Shot) -> bytes:
        """A request as it is sent."""
        body = json.dumps(shot.body).encode()
        head = (
            f"POST /v1/classify HTTP/1.1\r\nHost: {self._place[0]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"X-Request-Id: {shot.number}\r\n\r\n"
        )
        return head.encode() + body

    async def post(self, message: bytes) -> tuple[int, str, bytes]:
        """Status, id and body of the answer."""
        sent = self.send(message)
        if sent is None:
            sent = *await asyncio.open_connection(*self._place), time.monotonic()
            sent[1].write(message)
        return await self.receive(sent)

    def send(self, message: bytes) -> _Connection | None:
        """The connection that a message was written to; None where no open one is free."""
        while self._free:
            reader, writer, used = self._free.pop()
            if not reader.at_eof() and time.monotonic() - used < _IDLE:
                writer.write(message)
                return reader, writer, used
            writer.close()
        return None

    async def receive(self, sent: _Connection) -> tuple[int, str, bytes]:
        """Status, id and body of what is answered on a connection."""
        reader, writer, _ = sent
        try:
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                k.lower(): v.strip() for k, _, v in (line.partition(":") for line in answer[1:])
            }
            found = await reader.readexactly(int(headers["content-length"]))
        except BaseException:
            writer.close()
            raise
        self._free.append((reader, writer, time.monotonic()))
        return int(answer[0].split()[1]), headers.get("x-request-id", ""), found

    def close(self) -> None:
        """Hangs up."""
        for _, writer, _ in self._free:
            writer.close()


def summarise(hits: Sequence[Hit]) -> dict[str, Any]:
    """Counts, attainment, budgets and latencies of a run; attainment is of all requests."""
    by_status = Counter(hit.status for hit in hits)
    answered = [hit for hit in hits if hit.status == 200]
    met = [hit for hit in answered if 1000 * hit.latency <= hit.shot.target_ms]
    ids = Counter(hit.number for hit in answered)
    strangers = sum(hit.number != hit.shot.number for hit in answered)
    latencies = sorted(1000 * hit.latency for hit in answered)
    lateness = _share(sorted(hit.lateness for hit in hits), 0.99)
    return {
        "sent": len(hits),
        "answered": len(answered),
        "met": len(met),
        "attainment": len(met) / max(len(hits), 1),
        "degraded": sum(hit.told.get("degraded", False) for hit in answered),
        "refused": by_status[429] + by_status[503],
        "timed_out": by_status[504],
        "lost": by_status[0],
        "failed": sum(n for s, n in by_status.items() if s not in (0, 200, 429, 503, 504)),
        "twice": sum(n - 1 for n in ids.values()) + strangers,
        "mean_budget": statistics.fmean([hit.told["budget"] for hit in met]) if met else None,
        **_accuracy(hits),
        "p50_ms": _share(latencies, 0.50),
        "p95_ms": _share(latencies, 0.95),
        "p99_ms": _share(latencies, 0.99),
        "client_p99_ms": 1000 * lateness,
        "void": lateness > LATE_CLIENT,
    }


def _accuracy(hits: Sequence[Hit]) -> dict[str, Any]:
    """Rows of requests whose labels are known: sent, answered, right; and right in time."""
    known = [hit for hit in hits if hit.shot.labels]
    if not known:
        return {}
    met = [one for one in known if 1000 * one.latency <= one.shot.target_ms]
    return {
        "labelled_rows": sum(len(one.shot.labels) for one in known),
        "answered_rows": sum(len(one.labels) for one in known),
        "right_rows": sum(one.right for one in known),
        "right_in_time": sum(one.right for one in met),
    }


def _share(values: Sequence[float], share: float) -> float:
    return values[min(int(share * len(values)), len(values) - 1)] if values else 0.0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
