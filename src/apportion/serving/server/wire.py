"""The wire: requests to a server on this machine, written and read by one thread without waiting.

A client that measures a server must not be measured itself. Streams and tasks of an event loop take
a large part of a millisecond for a request, which adds up in a burst; a write, a poll and a read do
not. So this is as little as will do: plain sockets, and answers kept as bytes until all is over.
"""

from __future__ import annotations

import gc
import os
import select
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType

_IDLE = 25.0  # seconds after which a connection is not used again; our server hangs up after 30
_PRIORITY = 1  # among those that run before all others, which only root may
_MOST = 1 << 16  # bytes of a read


@dataclass(frozen=True)
class Reply:
    """An answer as it came, or none (status 0)."""

    number: str  # of the message that it answers
    status: int
    told: str  # the id that came back
    body: bytes
    moment: float  # of `time.perf_counter`
    resent: bool = False  # its connection had been closed at rest, so it was sent twice


@dataclass
class _Connection:
    """A socket, and what it waits for."""

    line: socket.socket
    used: float
    number: str | None = None  # of the message that is under way
    message: bytes = b""
    found: bytearray = field(default_factory=bytearray)
    answered: bool = False  # something, so that a server may have hung up on it at rest


class Wire:
    """Connections that stay open; one more is opened when none is free."""

    def __init__(self, host: str, port: int, *, connections: int = 0) -> None:
        self._place = host, port
        self._poll = selectors.DefaultSelector()
        self._free = [self._open() for _ in range(connections)]
        self._busy: dict[str, _Connection] = {}

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for key in list(self._poll.get_map().values()):
            key.data.line.close()
        self._poll.close()

    @property
    def waiting(self) -> int:
        """Messages that have no answer yet."""
        return len(self._busy)

    def message(self, number: str, body: bytes, path: str = "/v1/classify") -> bytes:
        """A request as it is sent."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._place[0]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"X-Request-Id: {number}\r\n\r\n"
        )
        return head.encode() + body

    def send(self, number: str, message: bytes) -> None:
        """Writes a message to a connection that is free, or to a new one."""
        now = time.monotonic()
        while self._free:
            # The one that rested longest: so none grows old, to be hung up on in the next burst.
            one = self._free.pop(0)
            if now - one.used < _IDLE and _write(one.line, message):
                break
            self._hang_up(one)
        else:
            one = self._open()
            one.line.sendall(message)
        one.number, one.message, one.used = number, message, now
        one.found.clear()
        self._busy[number] = one

    def receive(self, seconds: float) -> list[Reply]:
        """Answers that are complete, waiting for so long at most for the first byte."""
        replies, seconds = [], max(0.0, seconds)
        if hasattr(self._poll, "fileno"):  # by itself it counts in whole milliseconds
            select.select([self._poll.fileno()], [], [], seconds)
            seconds = 0.0
        for key, _ in self._poll.select(seconds):
            reply = self._read(key.data)
            if reply is not None:
                replies.append(reply)
        return replies

    def give_up(self) -> list[Reply]:
        """Ends what is under way: messages without an answer."""
        lost = [Reply(number, 0, "", b"", time.perf_counter()) for number in self._busy]
        for one in list(self._busy.values()):
            self._hang_up(one)
        self._busy.clear()
        return lost

    def _open(self) -> _Connection:
        line = socket.create_connection(self._place)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one = _Connection(line, time.monotonic())
        self._poll.register(line, selectors.EVENT_READ, one)
        return one

    def _hang_up(self, one: _Connection) -> None:
        self._poll.unregister(one.line)
        one.line.close()

    def _read(self, one: _Connection) -> Reply | None:
        try:
            data = one.line.recv(_MOST)
        except OSError:
            data = b""
        if not data:
            return self._closed(one)
        one.found += data
        head, end, rest = one.found.partition(b"\r\n\r\n")
        if not end:
            return None
        status, headers = _parse(bytes(head))
        if len(rest) < int(headers.get("content-length", 0)):
            return None
        reply = Reply(
            str(one.number),
            status,
            headers.get("x-request-id", ""),
            bytes(rest),
            time.perf_counter(),
            resent=not one.message,
        )
        self._busy.pop(str(one.number), None)
        one.number, one.answered = None, True
        self._free.append(one)
        return reply

    def _closed(self, one: _Connection) -> Reply | None:
        """A server hangs up on connections that nobody used for a while, maybe just now.

        As every client of HTTP does, one that was in use before, and whose message was not begun to
        be answered, sends it again, once.
        """
        self._hang_up(one)
        if one in self._free:
            self._free.remove(one)
        if one.number is None or self._busy.get(one.number) is not one:
            return None
        number = one.number
        del self._busy[number]
        if one.answered and not one.found and one.message:
            with suppress(OSError):
                self.send(number, one.message)
                self._busy[number].message = b""  # once
                return None
        return Reply(number, 0, "", b"", time.perf_counter())


def _write(line: socket.socket, message: bytes) -> bool:
    try:
        line.sendall(message)
    except OSError:
        return False
    return True


def _parse(head: bytes) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


@contextmanager
def in_front() -> Iterator[None]:
    """Lets this thread run before others where it may: clients of a busy machine come late.

    Nor does it stop to look for garbage, of which there is little.
    """
    collected = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with _at_once():
            yield
    finally:
        if collected:
            gc.enable()


@contextmanager
def _at_once() -> Iterator[None]:
    """With a priority before all usual threads, and on one core, where the system lets it.

    Whoever comes first everywhere would push the server from core to core.
    """
    if not hasattr(os, "sched_setscheduler"):
        yield
        return
    before, rank, cores = os.sched_getscheduler(0), os.sched_getparam(0), os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
        os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, before, rank)
            os.sched_setaffinity(0, cores)
