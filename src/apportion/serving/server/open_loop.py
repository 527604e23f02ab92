"""Load for a server on this machine: requests at times that are fixed beforehand, and a count.

Open loop: a slow server does not slow down its clients. Latency counts from the time at which a
request was to be sent, so that a client which is late itself hides nothing.
"""

from __future__ import annotations

import csv
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from apportion.serving.server.addresses import is_loopback
from apportion.serving.server.replay import gaps
from apportion.serving.server.wire import Reply, Wire, in_front

MOST = 100_000  # requests of one run
LONGEST = 600.0  # seconds of one run
LATE_CLIENT = 0.005  # a client later than this at its 99th percentile measured itself
_SILENT = 60.0  # seconds without an answer after which a server is given up
_OPEN = 256  # connections that are opened before the first request


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
    resent: bool = False  # on another connection, the first having been closed at rest

    @property
    def right(self) -> int:
        """Rows that were answered right; what was not answered is wrong."""
        return sum(one == other for one, other in zip(self.labels, self.shot.labels, strict=False))


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


def fire(url: str, shots: Sequence[Shot], *, wait: float = 60.0) -> list[Hit]:
    """Sends every shot at its time to a server on this machine; waits for all answers."""
    host, port = _place(url)
    if len(shots) > MOST or max((one.time for one in shots), default=0.0) > LONGEST:
        raise ValueError(f"a run has {MOST} requests and {LONGEST:g} s at most")
    replies: dict[str, Reply] = {}
    late: dict[str, float] = {}
    with Wire(host, port, connections=min(_OPEN, len(shots))) as wire:
        # Bodies are written before the first is sent and read after the last came: between bursts
        # there is time for that, in a burst there is not. Shots have names of their own on the
        # wire, so that two of one number are two.
        ready = [
            (str(place), shot, wire.message(shot.number, json.dumps(shot.body).encode()))
            for place, shot in enumerate(sorted(shots, key=lambda one: one.time))
        ]
        start = time.perf_counter() + 0.1
        with in_front():
            for name, shot, message in ready:
                moment = start + shot.time
                # It sleeps until then: one that looked at the clock all the while would take a core
                # from the server, and most of all in bursts.
                while (left := moment - time.perf_counter()) > 0.0:
                    for reply in wire.receive(left):
                        replies[reply.number] = reply
                wire.send(name, message)
                late[name] = time.perf_counter() - moment
            end = time.perf_counter() + wait
            while wire.waiting and (left := end - time.perf_counter()) > 0.0:
                for reply in wire.receive(left):
                    replies[reply.number] = reply
        for reply in wire.give_up():
            replies[reply.number] = reply
    return [
        _hit(shot, replies[name], replies[name].moment - start - shot.time, late[name])
        for name, shot, _ in ready
    ]


def saturate(url: str, bodies: Sequence[dict[str, Any]], *, clients: int, seconds: float) -> float:
    """Answered rows a second of so many clients, each of which asks again when it has an answer."""
    rows, place = 0, 0
    with Wire(*_place(url), connections=clients) as wire:
        messages = [wire.message(f"s{n}", json.dumps(b).encode()) for n, b in enumerate(bodies)]
        start = time.perf_counter()
        while place < clients:
            wire.send(str(place), messages[place % len(bodies)])
            place += 1
        last = start
        while wire.waiting:
            if time.perf_counter() > last + _SILENT:
                raise ValueError(
                    f"a server that was to be saturated said nothing for {_SILENT:g} s"
                )
            for reply in wire.receive(_SILENT):
                last = reply.moment
                if reply.status != 200:
                    raise ValueError(f"a server that was to be saturated answered {reply.status}")
                rows += len(bodies[int(reply.number) % len(bodies)]["input"])
                if reply.moment < start + seconds:
                    wire.send(str(place), messages[place % len(bodies)])
                    place += 1
        return rows / (time.perf_counter() - start)


def _place(url: str) -> tuple[str, int]:
    """Host and port of a server, if it is on this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not is_loopback(host):
        raise ValueError(f"load is for a server on this machine, not for {host}")
    return host, parts.port or 80


def _hit(shot: Shot, reply: Reply, latency: float, late: float) -> Hit:
    """What a reply says; of one that is no answer, nothing."""
    if reply.status != 200:
        return Hit(shot, reply.status, latency, late, reply.told, {})
    found = json.loads(reply.body)
    labels = tuple(row["label"] for row in found["data"])
    told = found.get("apportion", {})
    return Hit(shot, reply.status, latency, late, reply.told, told, labels, reply.resent)


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
        "resent": sum(hit.resent for hit in hits),
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
