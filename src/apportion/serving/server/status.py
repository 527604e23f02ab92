"""What a server tells of itself: its models by name, and what a request would get now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from apportion.serving.server.admitted import ANSWERED
from apportion.serving.server.engine import ServingEngine
from apportion.serving.server.terms import Config, Refusal


class Served(Protocol):
    """What is served, by which name."""

    engine: ServingEngine
    name: str
    refused: int

    @property
    def config(self) -> Config:
        """The terms of the model that answers now."""


def model_names(service: Served) -> dict[str, Any]:
    """The model, and the model at each tier: a client that can only name a model picks a tier."""
    names = [service.name, *(f"{service.name}:{tier.name}" for tier in service.config.tiers)]
    promised = service.engine.queue.promised()
    told = {name: promised[name] for name in ("disagree_at_most", "confidence") if promised}
    whole = service.engine.queue.model.levels[-1]
    may = [True, *(t.levels_of(_levels(service))[1] == whole for t in service.config.tiers)]
    made = [
        {
            "id": name,
            "object": "model",
            "owned_by": "apportion",
            "certificate": told if told and can else None,
        }
        for name, can in zip(names, may, strict=True)
    ]
    return {"object": "list", "data": made}


def _levels(service: Served) -> tuple[float, ...]:
    return service.engine.queue.model.levels


def model_facts(service: Served, name: str) -> dict[str, Any]:
    """The model as KServe's clients ask for it."""
    if name.partition(":")[0] != service.name:
        raise Refusal("no-such-model", f"there is no model {name[:80]!r}; see /v1/models")
    model = service.engine.queue.model
    return {
        "name": service.name,
        "versions": [str(model.identity.get("weights", ""))[:12]],
        "platform": model.identity.get("runtime", ""),
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, len(model.classes)]},
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
        ],
    }


def forecast_now(
    service: Served, query: Mapping[str, str], allowed: Collection[str] | None = None
) -> dict[str, Any]:
    """Milliseconds of each level for a call, and how things are; of the tiers that a key bought.

    Half of the calls are over after `ms`, and 19 of 20 after `ms_95`.
    """
    queue = service.engine.queue
    model, state = queue.model, queue.state()
    rows = _whole(query, "rows", 1, service.config.limits.rows)
    tokens = _whole(query, "tokens", 64, model.tokenizer.length)
    of = rows, tokens
    setting = model.setting.corrected(state["ratio"])
    rung = setting.rungs[min(int(state["rung"]), len(setting.rungs) - 1)]
    answered = sum(n for (_, outcome), n in list(queue.counts.items()) if outcome == ANSWERED)
    return {
        "model": service.name,
        "classes": list(model.classes),
        "rows": rows,
        "tokens": tokens,
        "levels": [
            {
                "budget": level,
                "ms": round(1000 * setting.ratio * setting.forecast_seconds(*of, level), 3),
                "ms_95": round(1000 * setting.seconds(*of, level), 3),
                "cost": round(rows * model.cost(tokens, level), 3),
            }
            for level in model.levels
        ],
        "tiers": [
            {
                "name": tier.name,
                "max_budget": tier.levels_of(model.levels)[1],
                "min_budget": tier.levels_of(model.levels)[0],
                "now": rung.get(tier.name),
                "target_ms": tier.target_ms,
                "price": tier.price,
            }
            for tier in service.config.tiers
            if allowed is None or tier.name in allowed
        ],
        "rung": int(state["rung"]),
        "rungs": len(setting.rungs),
        "queue": {
            "rows": int(state["rows"]),
            "tokens": int(state["tokens"]),
            "wait_ms": round(1000 * state["wait"], 1),
        },
        "ratio": round(state["ratio"], 3),
        "answered": answered,
        "met": sum(queue.met.values()),
        "refused": service.refused,
        "certificate": queue.promised() or None,
    }


def _whole(query: Mapping[str, str], name: str, usual: int, most: int) -> int:
    given = query.get(name)
    if given is None:
        return min(usual, most)
    if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most):
        raise Refusal("bad-field", f"{name} is a whole number from 1 to {most}", path=name)
    return int(given)
