"""The description of the server's HTTP interface, made from the code; docs/openapi.json is it."""

from __future__ import annotations

from typing import Any

import msgspec

from apportion import __version__
from apportion.serving.server.bodies import STATUS, TITLES, ClassifyBody, InferBody, PredictBody

_POSTS = {
    "/v1/classify": (ClassifyBody, "Classify texts on the terms of a tier"),
    "/predict": (PredictBody, "Classify texts, as text-embeddings-inference does"),
    "/v2/models/{model}/infer": (InferBody, "Classify texts, as KServe's protocol has it"),
}
_GETS = {
    "/v1/models": "The model, and a name per tier",
    "/v1/forecast": "Milliseconds and cost of each budget, the rung and the queue, now",
    "/v2": "What serves",
    "/v2/models/{model}": "The model's inputs and outputs",
    "/v2/models/{model}/ready": "Whether a request would be taken",
    "/v2/health/ready": "Whether a request would be taken",
    "/v2/health/live": "Whether the process lives",
    "/readyz": "Whether a request would be taken",
    "/health": "Whether a request would be taken",
    "/livez": "Whether the process lives",
    "/metrics": "Metrics for Prometheus",
    "/openapi.json": "This description",
    "/": "A page to try budgets on",
}
_QUERY = {"/v1/forecast": ("rows", "tokens")}


def openapi() -> dict[str, Any]:
    """The interface as an OpenAPI document."""
    kinds = [body for body, _ in _POSTS.values()]
    schemas, parts = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    problem = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": [f"/problems/{kind}" for kind in STATUS]},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "instance": {"type": "string"},
        },
        "required": ["type", "title", "status", "detail", "instance"],
    }
    paths: dict[str, Any] = {}
    for (path, (_, says)), schema in zip(_POSTS.items(), schemas, strict=True):
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {
            "post": {
                "summary": says,
                **_parameters(path),
                "requestBody": body,
                "responses": {"200": {"description": "Answers"}, **_errors(path)},
            }
        }
    for path, says in _GETS.items():
        paths[path] = {
            "get": {
                "summary": says,
                **_parameters(path),
                "responses": {"200": {"description": says}},
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "apportion serve", "version": __version__},
        "security": [{}, {"key": []}],  # keys are asked for where the configuration names some
        "paths": paths,
        "components": {
            "schemas": {**parts, "Problem": problem},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _parameters(path: str) -> dict[str, Any]:
    whole, text = {"type": "integer", "minimum": 1}, {"type": "string"}
    found = [
        {"name": name, "in": "query", "required": False, "schema": whole}
        for name in _QUERY.get(path, ())
    ]
    if "{model}" in path:
        found.append({"name": "model", "in": "path", "required": True, "schema": text})
    return {"parameters": found} if found else {}


def _errors(path: str) -> dict[str, Any]:
    """By status; ours are problem details, other dialects have their own shapes."""
    by_status: dict[str, list[str]] = {}
    for kind, status in STATUS.items():
        if kind not in ("no-such-page", "method", "starting"):
            by_status.setdefault(str(status), []).append(TITLES[kind])
    content = (
        {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        if path == "/v1/classify"
        else {"application/json": {"schema": {"type": "object"}}}
    )
    return {
        status: {"description": "; ".join(titles), "content": content}
        for status, titles in sorted(by_status.items())
    }
