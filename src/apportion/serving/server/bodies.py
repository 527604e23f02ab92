"""Bodies of requests, checked while they are read, and the kinds of errors with their statuses."""

from __future__ import annotations

from typing import Any

import msgspec

from apportion.serving.server.terms import Refusal

STATUS = {
    "not-json": 400,
    "no-key": 401,
    "unknown-key": 401,
    "tier-not-allowed": 403,
    "no-such-model": 404,
    "no-such-page": 404,
    "method": 405,
    "slow-body": 408,
    "too-large": 413,
    "media-type": 415,
    "bad-field": 422,
    "no-such-tier": 422,
    "queue-full": 429,
    "rate": 429,
    "failed": 500,
    "draining": 503,
    "starting": 503,
    "timed-out": 504,
}
TITLES = {
    "not-json": "The body is not JSON",
    "no-key": "No key",
    "unknown-key": "Unknown key",
    "tier-not-allowed": "Tier not allowed",
    "no-such-model": "No such model",
    "no-such-page": "No such page",
    "method": "Method not allowed",
    "slow-body": "The body came too slowly",
    "too-large": "Too large",
    "media-type": "Not JSON by its type",
    "bad-field": "A field can't be right",
    "no-such-tier": "No such tier",
    "queue-full": "The queue is full",
    "rate": "Too many requests of this key",
    "failed": "The model failed",
    "draining": "About to end",
    "starting": "Starting",
    "timed-out": "Timed out",
}


class ClassifyBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of /v1/classify."""

    input: str | list[str]
    model: str | None = None
    tier: str | None = None
    service_tier: str | None = None
    budget: float | None = None
    min_budget: float | None = None
    target_ms: float | None = None
    timeout_ms: float | None = None
    certificate: bool = False
    user: str | None = None


class PredictBody(msgspec.Struct):
    """The body of /predict. Clients send fields that the server of this dialect does not know."""

    inputs: str | list[str | list[str]]
    truncate: bool | None = None
    truncation_direction: str | None = None
    raw_scores: bool = False


class Tensor(msgspec.Struct):
    """An input of KServe's protocol."""

    name: str
    shape: list[int]
    datatype: str
    data: list[str | list[str]]
    parameters: dict[str, Any] = {}


class InferBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of /v2/models/{model}/infer."""

    inputs: list[Tensor]
    id: str | None = None
    parameters: dict[str, Any] = {}
    outputs: list[dict[str, Any]] | None = None


def decode(body: bytes, kind: Any) -> Any:
    """A body, checked while it is read; a `Refusal` names what is wrong and where."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at ")
        raise Refusal("bad-field", said[:300], path=path.strip("`") or "$") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("not-json", f"the body is not JSON: {str(error)[:200]}") from None
