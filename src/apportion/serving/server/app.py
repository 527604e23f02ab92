"""The application: which route leads where."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from apportion import __version__
from apportion.serving.server.dialects import JSON, Dialect, KServe, Native, TextEmbeddingsInference
from apportion.serving.server.engine import ServingEngine
from apportion.serving.server.keys import Keyring
from apportion.serving.server.openapi import openapi
from apportion.serving.server.service import Service, number_of, refused
from apportion.serving.server.status import forecast_now, model_facts, model_names
from apportion.serving.server.terms import Refusal

PAGE = Path(__file__).with_name("page.html")
_PRODUCT = {"name": "apportion", "version": __version__, "extensions": []}  # for KServe's clients


def build_app(engine: ServingEngine, *, name: str, keyring: Keyring | None = None) -> Starlette:
    """The application of an engine that was started."""
    service = Service(engine, name=name, keyring=keyring)

    # Functions that say that they are asynchronous: others would be run in a thread.
    def answering(dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await service.answer(request, dialect)

        return endpoint

    def showing(page: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return service.show(request, page)

        return endpoint

    async def described(_: Request) -> Response:
        return Response(msgspec.json.encode(openapi()), media_type=JSON)

    async def live(_: Request) -> Response:
        return Response(b'{"live":true}', media_type=JSON)

    async def page(_: Request) -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        headers = {"Content-Security-Policy": policy + "connect-src 'self'; img-src data:"}
        return Response(PAGE.read_bytes(), 200, headers, media_type="text/html")

    async def metrics(request: Request) -> Response:
        shown = service.show(request, lambda _: None)
        if shown.status_code != 200:
            return shown
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    routes = [
        Route("/v1/classify", answering(Native()), methods=["POST"]),
        Route("/predict", answering(TextEmbeddingsInference()), methods=["POST"]),
        Route("/v2/models/{model}/infer", answering(KServe()), methods=["POST"]),
        Route("/v1/models", showing(lambda _: model_names(service))),
        Route(
            "/v1/forecast",
            showing(lambda r: forecast_now(service, r.query_params, r.state.tiers)),
        ),
        Route("/v2", showing(lambda _: _PRODUCT)),
        Route(
            "/v2/models/{model}", showing(lambda r: model_facts(service, r.path_params["model"]))
        ),
        Route("/v2/models/{model}/ready", service.ready),
        Route("/v2/health/ready", service.ready),
        Route("/v2/health/live", live),
        Route("/readyz", service.ready),
        Route("/health", service.ready),
        Route("/livez", live),
        Route("/metrics", metrics),
        Route("/openapi.json", described),
        Route("/", page),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _not_there})
    app.state.service = service
    return app


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:80]
    if error.status_code == 405:
        refusal = Refusal("method", f"{path} does not take {request.method[:20]}")
    elif path == "/v1/embeddings":
        refusal = Refusal("no-such-page", "this model classifies; it has no embeddings")
    else:
        refusal = Refusal("no-such-page", f"there is nothing at {path}; see /openapi.json")
    return refused(Native(), refusal, number_of(request), dict(error.headers or {}))
