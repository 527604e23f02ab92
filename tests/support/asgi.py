"""Requests to an ASGI application without a socket, as bytes and headers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send(
    app,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    *,
    leave_when: Callable[[], bool] | None = None,
    parts: list[tuple[float, bytes]] | None = None,
) -> Reply:
    """One request. The client leaves once `leave_when` says so; `parts` come after their waits."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    given = {"content-type": "application/json", **(headers or {})}
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    coming = list(parts) if parts is not None else [(0.0, body or b"")]
    reply = Reply(0, {}, b"")

    async def receive():
        if coming:
            wait, part = coming.pop(0)
            await asyncio.sleep(wait)
            return {"type": "http.request", "body": part, "more_body": bool(coming)}
        while leave_when is None or not leave_when():
            await asyncio.sleep(3600 if leave_when is None else 0.005)
        return {"type": "http.disconnect"}

    async def sent(message):
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    await app(scope, receive, sent)
    return reply


def call(app, method: str, path: str, body: Any = None, headers=None, **options) -> Reply:
    """One request, waited for."""
    return asyncio.run(send(app, method, path, body, headers, **options))


def call_all(app, *requests) -> list[Reply]:
    """Several requests at once, each (method, path, body, headers)."""

    async def every():
        return await asyncio.gather(*(send(app, *one) for one in requests))

    return asyncio.run(every())
