"""A service: what stands between a request and the engine. Keys, limits, tickets, the log."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from apportion.serving.server.admitted import ANSWERED, CANCELLED, FAILED, TIMED_OUT
from apportion.serving.server.bodies import STATUS
from apportion.serving.server.dialects import (
    JSON,
    Dialect,
    KServe,
    Native,
    Question,
    summary,
    timings,
)
from apportion.serving.server.engine import ServingEngine, Ticket
from apportion.serving.server.keys import Key, Keyring
from apportion.serving.server.metrics import Metrics
from apportion.serving.server.promise import Unpromised
from apportion.serving.server.terms import Asked, Config, Refusal, agree

_GONE = 499  # nobody reads it: the client has left
# Seconds until somebody looks whether the client is still there. Most answers are there before, and
# to look takes as long as a good part of what the server adds to a short one.
_WATCHED_AFTER = 0.01
_access = logging.getLogger("apportion.access")


class Service:
    """What the routes share: an engine, a name, keys and metrics."""

    def __init__(self, engine: ServingEngine, *, name: str, keyring: Keyring | None = None) -> None:
        self.engine, self.name, self.keyring = engine, name, keyring
        self.metrics = Metrics(engine)
        self.refused = 0

    @property
    def config(self) -> Config:
        """The terms of the model that answers now."""
        return self.engine.queue.model.config

    async def answer(self, request: Request, dialect: Dialect) -> Response:
        """One request of any dialect, from its bytes to its answer."""
        started, number = time.perf_counter(), number_of(request)
        # The route and not the path, in which a client may write what it likes.
        route = request.scope["path"] if not request.path_params else "/v2/models/{model}/infer"
        noted: dict[str, Any] = {"id": number, "route": route, "key": "-"}
        headers = {"X-Request-Id": number}
        try:
            key = self._key(request)
            noted["key"] = key.name if key else "-"
            if key and self.keyring:
                self.keyring.check_rate(key)
            body = await self._body(request)
            question = dialect.read(body, self.config)
            ticket = await self._ticket(request, question, key, number)
            told = summary(ticket)
            noted.update(tier=ticket.terms.tier, rows=len(question.texts), budget=told["budget"])
            headers |= timings(told, time.perf_counter() - started, ticket)
            response = Response(
                dialect.write(question, ticket, self.name), 200, headers, media_type=JSON
            )
        except Refusal as refusal:
            response = refused(dialect, refusal, number, headers)
        except ClientDisconnect:
            response = Response(status_code=_GONE)
        except Exception as error:  # ours: the id leads to its kind in the log, and to no text
            noted["error"] = type(error).__name__
            failure = Refusal("failed", f"the server failed on this request; its id is {number}")
            response = refused(dialect, failure, number, headers)
        noted.update(status=response.status_code, ms=1000 * (time.perf_counter() - started))
        # Written down once the answer is on its way.
        asyncio.get_running_loop().call_soon(self._note, noted)
        return response

    def _note(self, noted: dict[str, Any]) -> None:
        """A request in metrics and log."""
        labels = noted["route"], "POST", str(noted["status"])
        self.metrics.http.labels(*labels).observe(noted["ms"] / 1000)
        if _access.isEnabledFor(logging.INFO):
            _access.info(json.dumps({**noted, "ms": round(noted["ms"], 2)}))

    def _key(self, request: Request) -> Key | None:
        if self.keyring is None:
            return None
        given = request.headers.get("authorization", "")
        word, _, rest = given.partition(" ")
        bearer = rest.strip() if word.lower() == "bearer" else None
        return self.keyring.find(bearer or request.headers.get("x-api-key"))

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind != JSON and not kind.endswith("+json"):
            raise Refusal("media-type", f"the body is {JSON}, not {kind[:80]}")
        limits = self.config.limits
        length = request.headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:18]) > limits.body:
            raise _too_large(limits.body)
        try:
            return await asyncio.wait_for(_read(request, limits.body), limits.body_seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise Refusal(
                "slow-body", f"the body did not arrive in {limits.body_seconds:g} s"
            ) from None

    async def _ticket(
        self, request: Request, question: Question, key: Key | None, number: str
    ) -> Ticket:
        """A question's ticket once it is answered; whatever else becomes of it is a `Refusal`."""
        model, limits = self.engine.queue.model, self.config.limits
        asked = self._asked(question, request.path_params.get("model"))
        _check_texts(question.texts, limits.rows, limits.characters)
        if asked.certificate and isinstance(model.promise, Unpromised):
            raise model.promise.refusal()
        allowed = key.tiers if key else None
        terms = agree(asked, model.config, levels=model.levels, allowed=allowed)
        wait = _Wait(request, terms.timeout_ms / 1000.0)
        whole = bool(question.notes.get("whole"))
        ticket = Ticket(question.texts, terms, model, wait.answer, number=number, whole=whole)
        try:
            self.engine.ask(ticket)
            await wait.over
        except Refusal as refusal:
            ticket.refusal = refusal
        except asyncio.CancelledError:  # whoever runs this application saw that the client left
            wait.left = True
            raise
        finally:
            wait.stop()
            if not wait.answered:
                self.engine.leave(ticket, CANCELLED if wait.left else TIMED_OUT)
            asyncio.get_running_loop().call_soon(self._count, ticket, key)
        # An answer that came at the last moment counts as one: the rows' outcomes are final now.
        if wait.left and _outcome(ticket) != ANSWERED:
            raise ClientDisconnect
        return _answered(ticket)

    def _asked(self, question: Question, in_path: str | None) -> Asked:
        """What is asked, with a tier that the model's name may carry."""
        asked = question.asked
        for given in (question.model, in_path):
            if given is None:
                continue
            name, _, tier = given.partition(":")
            if name != self.name or (tier and tier not in [t.name for t in self.config.tiers]):
                raise Refusal("no-such-model", f"there is no model {given[:80]!r}; see /v1/models")
            if tier and asked.tier not in (None, tier):
                raise Refusal("bad-field", "the model's name has another tier", path="tier")
            asked = replace(asked, tier=tier) if tier else asked
        return asked

    def _count(self, ticket: Ticket, key: Key | None) -> None:
        if ticket.request is None:
            if ticket.refusal is not None and ticket.refusal.kind == "queue-full":
                self.refused += ticket.count
                self.metrics.rows.labels(ticket.terms.tier, "refused").inc(ticket.count)
            return
        self.metrics.count(ticket, key.name if key else "-")
        if key and self.keyring and ticket.request.outcome == ANSWERED:
            self.keyring.spend(key, sum(row.cost for row in ticket.request.rows))

    def show(self, request: Request, page: Callable[[Request], Any]) -> Response:
        """A page of facts, as JSON, for those who may see it."""
        number = number_of(request)
        try:
            key = self._key(request)
            request.state.tiers = key.tiers if key else None
            body = msgspec.json.encode(page(request))
            return Response(body, headers={"X-Request-Id": number}, media_type=JSON)
        except Refusal as refusal:
            return refused(Native(), refusal, number, {"X-Request-Id": number})

    async def ready(self, request: Request) -> Response:
        """200 if a request would be taken now; by the model that the path names, if it does."""
        asked = request.path_params.get("model", self.name)
        if asked.partition(":")[0] != self.name:
            unknown = Refusal("no-such-model", f"there is no model {asked[:80]!r}; see /v1/models")
            return refused(KServe(), unknown, number_of(request), {})
        trouble = self.engine.trouble()
        if trouble is None:
            return Response(b'{"ready":true}', media_type=JSON)
        kind = "draining" if self.engine.closing else "starting"
        refusal = Refusal(kind, f"not ready: {trouble}", retry_after_ms=1000)
        return refused(Native(), refusal, number_of(request), {})


def refused(dialect: Dialect, refusal: Refusal, number: str, headers: dict[str, str]) -> Response:
    """A refusal as its dialect has it."""
    kind, body = dialect.error(refusal, number)
    headers = dict(headers)
    if "retry_after_ms" in refusal.extras:
        headers["Retry-After"] = str(-(-int(refusal.extras["retry_after_ms"]) // 1000))
    if refusal.kind in ("no-key", "unknown-key"):
        headers["WWW-Authenticate"] = "Bearer"
    if refusal.kind in ("too-large", "slow-body"):
        headers["Connection"] = "close"  # the rest of the body is not read
    return Response(body, STATUS[refusal.kind], headers, media_type=kind)


def _outcome(ticket: Ticket) -> str:
    """How it ended; a ticket that never came to the queue was waited for too long."""
    return TIMED_OUT if ticket.request is None else ticket.request.outcome


def _answered(ticket: Ticket) -> Ticket:
    if ticket.refusal is not None:
        raise ticket.refusal
    outcome = _outcome(ticket)
    if outcome == TIMED_OUT:
        raise _timed_out(ticket.terms.timeout_ms)
    if outcome == FAILED:
        raise Refusal("failed", "the model failed on this request, twice")
    if outcome == CANCELLED:
        raise Refusal("draining", "the server ended before it came to this", retry_after_ms=1000)
    return ticket


def _timed_out(ms: float) -> Refusal:
    return Refusal("timed-out", f"there was no answer in {ms:g} ms")


def _too_large(limit: int) -> Refusal:
    return Refusal("too-large", f"the body has more than {limit} bytes", limit=limit)


def _check_texts(texts: list[str], rows: int, characters: int) -> None:
    if not texts:
        raise Refusal("bad-field", "there is no text", path="input")
    if len(texts) > rows:
        raise Refusal("too-large", f"{len(texts)} texts are more than {rows}", limit=rows)
    size = sum(map(len, texts))
    if size > characters:
        raise Refusal(
            "too-large", f"{size} characters are more than {characters}", limit=characters
        )


async def _read(request: Request, limit: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


class _Wait:
    """A request waits until it has its answer, its client has left, or its time is over.

    `over` is awaited; then `answered` and `left` say which it was.
    """

    def __init__(self, request: Request, seconds: float) -> None:
        self.answered = self.left = False
        self._request, self._loop = request, asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._watcher: asyncio.Task[None] | None = None
        self._timers = (
            self._loop.call_later(seconds, self._end),
            self._loop.call_later(_WATCHED_AFTER, self._watch),
        )

    def answer(self, _: object = None) -> None:
        """Its answer is there; any thread may say so."""
        with suppress(RuntimeError):  # the loop may have ended
            self._loop.call_soon_threadsafe(self._end, True)

    def stop(self) -> None:
        """Nobody waits any more."""
        for timer in self._timers:
            timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _watch(self) -> None:
        self._watcher = asyncio.ensure_future(self._leave())

    async def _leave(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass  # its body was read before
        self.left = True
        self._end()

    def _end(self, answered: bool = False) -> None:
        if not self.over.done():
            self.answered = answered
            self.over.set_result(None)


def number_of(request: Request) -> str:
    """The id of a request: its own, or one that is made."""
    given = request.headers.get("x-request-id", "")
    good = 0 < len(given) <= 128 and given.isascii() and given.isprintable()
    return given if good else uuid.uuid4().hex
