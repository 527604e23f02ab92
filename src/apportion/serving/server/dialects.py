"""Dialects: bytes into what is asked, answers and errors into bytes, for three protocols.

`/v1/classify` is ours, in the shape that other servers of classifiers have; its errors are
problem+json (RFC 9457). `/predict` is that of text-embeddings-inference. `/v2` is KServe's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from apportion.serving.server.admitted import Row
from apportion.serving.server.bodies import (
    STATUS,
    TITLES,
    ClassifyBody,
    InferBody,
    PredictBody,
    decode,
)
from apportion.serving.server.engine import Ticket
from apportion.serving.server.terms import Asked, Config, Refusal

_MOST = 1e15  # of a number that a client sends

JSON, PROBLEM = "application/json", "application/problem+json"


@dataclass(frozen=True)
class Question:
    """What a request asks, in whichever dialect."""

    texts: list[str]
    asked: Asked = field(default_factory=Asked)
    model: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)  # what its answer needs


class Dialect(Protocol):
    """How one protocol is read and written."""

    def read(self, body: bytes, config: Config) -> Question:
        """What a body asks; a `Refusal` says what is wrong with it."""

    def write(self, question: Question, ticket: Ticket, name: str) -> bytes:
        """The answer's body."""

    def error(self, refusal: Refusal, number: str) -> tuple[str, bytes]:
        """An error's media type and body."""


class Native:
    """/v1/classify."""

    def read(self, body: bytes, config: Config) -> Question:
        """What a body asks."""
        given = decode(body, ClassifyBody)
        if given.tier is not None and given.service_tier is not None:
            raise Refusal("bad-field", "tier and service_tier say the same: give one", path="tier")
        tier = given.tier or service_tier(given.service_tier, config)
        texts = [given.input] if isinstance(given.input, str) else given.input
        asked = Asked(
            tier,
            given.budget,
            given.min_budget,
            given.target_ms,
            given.timeout_ms,
            given.certificate,
        )
        return Question(texts, asked, given.model)

    def write(self, question: Question, ticket: Ticket, name: str) -> bytes:
        """Labels, probabilities, and what was done for them."""
        assert ticket.request is not None
        rows, classes = ticket.request.rows, ticket.model.classes
        tokens = sum(len(row.ids) for row in rows)
        answer = {
            "object": "list",
            "model": name,
            "service_tier": ticket.terms.tier,
            "data": [_native_row(place, row, classes) for place, row in enumerate(rows)],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "apportion": summary(ticket),
        }
        return msgspec.json.encode(answer)

    def error(self, refusal: Refusal, number: str) -> tuple[str, bytes]:
        """Problem details."""
        problem = {
            "type": f"/problems/{refusal.kind}",
            "title": TITLES[refusal.kind],
            "status": STATUS[refusal.kind],
            "detail": refusal.detail,
            "instance": number,
            **refusal.extras,
        }
        return PROBLEM, msgspec.json.encode(problem)


class TextEmbeddingsInference:
    """/predict: a text, or a list of lists of one text. Pairs are not classified here."""

    def read(self, body: bytes, config: Config) -> Question:
        """What a body asks."""
        given = decode(body, PredictBody)
        if given.truncation_direction not in (None, "right", "Right"):
            raise Refusal("bad-field", "texts are cut at the right", path="truncation_direction")
        inputs = given.inputs
        batch = False
        if isinstance(inputs, str):
            texts = [inputs]
        elif all(isinstance(one, str) for one in inputs) and len(inputs) == 1:
            texts = [str(inputs[0])]
        else:
            batch = True
            if not all(isinstance(one, list) and len(one) == 1 for one in inputs):
                raise Refusal(
                    "bad-field",
                    "inputs are a text or a batch [[text], [text], …]; pairs are not classified",
                    path="inputs",
                )
            texts = [one[0] for one in inputs]
        notes = {"batch": batch, "raw": given.raw_scores, "whole": given.truncate is False}
        return Question(texts, notes=notes)

    def write(self, question: Question, ticket: Ticket, name: str) -> bytes:
        """Classes by falling score, per text."""
        assert ticket.request is not None
        classes, found = ticket.model.classes, []
        for row in ticket.request.rows:
            shares = _probabilities(row)
            if question.notes["raw"]:  # up to a constant, as logits are
                shares = [_log(share) for share in shares]
            ranked = sorted(zip(shares, classes, strict=True), key=lambda pair: -pair[0])
            found.append([{"score": score, "label": label} for score, label in ranked])
        return msgspec.json.encode(found if question.notes["batch"] else found[0])

    def error(self, refusal: Refusal, number: str) -> tuple[str, bytes]:
        """As its clients know errors."""
        status = STATUS[refusal.kind]
        kind = "Overloaded" if status == 429 else "Backend" if status >= 500 else "Validation"
        return JSON, msgspec.json.encode({"error": refusal.detail, "error_type": kind})


class KServe:
    """/v2/models/{model}/infer: one input of BYTES."""

    _NUMBERS = ("budget", "min_budget", "target_ms", "timeout", "priority")
    _KNOWN = ("tier", *_NUMBERS, "certificate")

    def read(self, body: bytes, config: Config) -> Question:
        """What a body asks. `timeout` is in microseconds; priority 1 is the dearest tier."""
        given = decode(body, InferBody)
        if len(given.inputs) != 1 or given.inputs[0].datatype != "BYTES":
            raise Refusal("bad-field", "one input of datatype BYTES is read", path="inputs")
        data = given.inputs[0].data
        texts = [one for part in data for one in ([part] if isinstance(part, str) else part)]
        shape = given.inputs[0].shape
        if shape not in ([len(texts)], [len(texts), 1]):
            raise Refusal(
                "bad-field",
                f"{len(texts)} texts have the shape [{len(texts)}], not {shape[:8]}",
                path="inputs[0].shape",
            )
        wanted = {"probabilities", "label"}
        names = [str(one.get("name")) for one in given.outputs or ()]
        if not set(names) <= wanted:
            raise Refusal("bad-field", "outputs are probabilities and label", path="outputs")
        notes = {"id": given.id, "outputs": names or ["probabilities", "label"]}
        return Question(texts, self._asked(given.parameters, config), notes=notes)

    def _asked(self, given: Mapping[str, Any], config: Config) -> Asked:
        unknown = sorted(set(given) - set(self._KNOWN))
        if unknown:
            raise Refusal(
                "bad-field",
                f"there is no parameter {unknown[0][:80]!r}; there are {', '.join(self._KNOWN)}",
                path="parameters",
            )
        tier = given.get("tier")
        if tier is not None and not isinstance(tier, str):
            raise Refusal("bad-field", "tier is text", path="parameters.tier")
        numbers: dict[str, float | None] = {}
        for name in self._NUMBERS:
            value = given.get(name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float)
            ):
                raise Refusal("bad-field", f"{name} is a number", path=f"parameters.{name}")
            if value is not None and abs(value) > _MOST:  # JSON has whole numbers of any length
                said = f"{name} is at most {_MOST:g}"
                raise Refusal("bad-field", said, path=f"parameters.{name}")
            numbers[name] = value
        if numbers["priority"]:
            ranked = sorted(config.tiers, key=lambda one: -one.weight)
            place = numbers["priority"]
            if place != int(place) or not 1 <= place <= len(ranked) or tier is not None:
                raise Refusal(
                    "bad-field",
                    f"priority is a whole number from 1 to {len(ranked)}, without a tier",
                    path="parameters.priority",
                )
            tier = ranked[int(place) - 1].name
        certificate = given.get("certificate", False)
        if not isinstance(certificate, bool):
            said = "certificate is true or false"
            raise Refusal("bad-field", said, path="parameters.certificate")
        timeout = numbers["timeout"]
        return Asked(
            tier,
            numbers["budget"],
            numbers["min_budget"],
            numbers["target_ms"],
            None if timeout is None else timeout / 1000.0,
            certificate,
        )

    def write(self, question: Question, ticket: Ticket, name: str) -> bytes:
        """Tensors, and what was done for them as parameters."""
        assert ticket.request is not None
        rows, classes = ticket.request.rows, ticket.model.classes
        shares = [_probabilities(row) for row in rows]
        flat = [share for row in shares for share in row]
        labels = [classes[row.index(max(row))] for row in shares]
        sizes = [len(rows), len(classes)]
        made = {
            "probabilities": {"datatype": "FP32", "shape": sizes, "data": flat},
            "label": {"datatype": "BYTES", "shape": sizes[:1], "data": labels},
        }
        told = {k: v for k, v in summary(ticket).items() if v is not None}
        answer: dict[str, Any] = {
            "model_name": name,
            "model_version": str(ticket.model.identity.get("weights", ""))[:12],
            "outputs": [{"name": one, **made[one]} for one in question.notes["outputs"]],
            "parameters": {"tier": ticket.terms.tier, **told},
        }
        if question.notes["id"] is not None:
            answer["id"] = question.notes["id"]
        return msgspec.json.encode(answer)

    def error(self, refusal: Refusal, number: str) -> tuple[str, bytes]:
        """As its clients know errors."""
        return JSON, msgspec.json.encode({"error": refusal.detail})


def summary(ticket: Ticket) -> dict[str, Any]:
    """What was done for a request: the least of its rows' budgets, the longest of their times."""
    assert ticket.request is not None
    request, rows = ticket.request, ticket.request.rows
    cost = sum(row.cost for row in rows)
    late = max(row.ended for row in rows) - request.received > ticket.terms.target_ms / 1000.0
    waited = max(row.ended - row.computed for row in rows) - request.received
    return {
        "budget": min(row.level for row in rows),
        "asked": min(row.asked for row in rows),
        "degraded": any(row.level < row.asked for row in rows),
        "rung": max(row.rung for row in rows),
        "cost": round(cost, 4),
        "units": "token-budgets",
        "price": round(cost * ticket.terms.price, 4),
        # All that is neither encoding nor the model: for the encoder's thread, too.
        "queue_ms": _ms(max(waited - ticket.encode_seconds, 0.0)),
        "encode_ms": _ms(ticket.encode_seconds),
        "model_ms": _ms(max(row.computed for row in rows)),
        "batch": max(row.batch for row in rows),
        "late": late,
        "certified": all(row.certified for row in rows) if ticket.terms.certificate else None,
    }


def timings(told: dict[str, Any], seconds: float, ticket: Ticket) -> dict[str, str]:
    """Headers of an answer: ours, and those that clients of text-embeddings-inference read."""
    assert ticket.request is not None
    parts = [f"{name};dur={told[f'{name}_ms']:g}" for name in ("queue", "encode", "model")]
    return {
        "Server-Timing": ", ".join(parts),
        "X-Apportion-Budget": f"{told['budget']:g}",
        "x-compute-time": str(round(1000 * seconds)),
        "x-queue-time": str(round(told["queue_ms"])),
        "x-inference-time": str(round(told["model_ms"])),
        "x-compute-tokens": str(sum(len(row.ids) for row in ticket.request.rows)),
    }


def service_tier(name: str | None, config: Config) -> str | None:
    """A tier by the words that OpenAI's clients have for one; a tier's own name will do too."""
    if name is None or name == "auto":
        return None
    ranked = [tier.name for tier in sorted(config.tiers, key=lambda tier: tier.weight)]
    words = {"flex": ranked[0], "default": ranked[len(ranked) // 2], "priority": ranked[-1]}
    return name if name in ranked else words.get(name, name)


def _native_row(place: int, row: Row, classes: Sequence[str]) -> dict[str, Any]:
    shares = _probabilities(row)
    label = classes[shares.index(max(shares))]
    told = {} if row.certified is None else {"certified": row.certified}
    return {
        "index": place,
        "label": label,
        "probs": shares,
        "num_classes": len(classes),
        "budget": row.level,
        **told,
    }


def _probabilities(row: Row) -> list[float]:
    assert row.probabilities is not None
    return [round(float(share), 6) for share in row.probabilities]


def _log(share: float) -> float:
    return math.log(max(share, 1e-6))


def _ms(seconds: float) -> float:
    return round(1000.0 * seconds, 3)
