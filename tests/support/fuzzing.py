"""Requests that nobody should send, to all dialects: `python tests/support/fuzzing.py 100000`.

Good bodies are spoilt, a little or wholly. What comes back must be an answer or an
error in the dialect's own shape; never a 500, never a traceback, never nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
import string
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from asgi import Reply, send
from virtual import TIERS, certificate, model

from apportion.serving.server.app import build_app
from apportion.serving.server.engine import ServingEngine
from apportion.serving.server.promise import Promise
from apportion.serving.server.terms import Config, Limits

LIMITS = Limits(body=20_000, body_seconds=0.5, rows=8, characters=2000, timeout_ms=5000)
GOOD = {
    "/v1/classify": {
        "input": ["a b", "c"],
        "tier": "high-quality",
        "target_ms": 50,
        "timeout_ms": 900,
        "certificate": True,
    },
    "/predict": {"inputs": [["a"], ["b c"]], "raw_scores": True, "truncate": True},
    "/v2/models/news/infer": {
        "id": "1",
        "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}],
        "parameters": {"priority": 1, "timeout": 1_000_000, "certificate": True},
        "outputs": [{"name": "label"}],
    },
}
ODD = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        0.5,
        1e308,
        -1e308,
        2**70,
        10**320,
        "",
        "a",
        "\x00",
        "\ud800",
        "a" * 3000,
    ),
    *(
        [],
        {},
        [[]],
        [None],
        [["a", "b"]],
        {"a": {}},
        "low-cost",
        "auto",
        "news:balanced",
        "🙂" * 50,
    ),
]
GETS = ("/", "/v1/models", "/v1/forecast", "/v2", "/v2/models/news", "/readyz", "/metrics", "/x")


def spoilt(draw: random.Random, value: Any, depth: int = 0) -> Any:
    """A value with something wrong in it, here or deeper."""
    if depth > 4 or draw.random() < 0.25:
        return draw.choice(ODD)
    if isinstance(value, dict) and value:
        made, name = dict(value), draw.choice(list(value))
        kind = draw.random()
        if kind < 0.2:
            del made[name]
        elif kind < 0.35:
            made["".join(draw.choices(string.printable, k=draw.randrange(9)))] = draw.choice(ODD)
        else:
            made[name] = spoilt(draw, made[name], depth + 1)
        return made
    if isinstance(value, list) and value:
        if draw.random() < 0.2:
            return value * draw.randrange(12)
        place = draw.randrange(len(value))
        return [spoilt(draw, v, depth + 1) if n == place else v for n, v in enumerate(value)]
    return draw.choice(ODD)


def request(draw: random.Random) -> tuple[str, str, Any, dict[str, str]]:
    """Method, path, body and headers."""
    if draw.random() < 0.1:
        query = "".join(draw.choices("?&=tokensrows0123456789-%é", k=draw.randrange(12)))
        return draw.choice(["GET", "PUT", "HEAD"]), draw.choice(GETS) + "?" + query, None, {}
    path, body = draw.choice(list(GOOD.items()))
    for _ in range(draw.randrange(4)):
        body = spoilt(draw, body)
    raw = json.dumps(body).encode()
    if draw.random() < 0.15:
        cut = draw.randrange(len(raw) + 1)
        raw = (
            raw[:cut]
            + bytes(draw.randrange(256) for _ in range(draw.randrange(6)))
            + raw[cut + 1 :]
        )
    if draw.random() < 0.02:
        raw = b"[" * draw.randrange(20_001)
    headers = {}
    if draw.random() < 0.1:
        name = draw.choice(["content-type", "x-request-id", "content-length", "authorization"])
        headers[name] = "".join(draw.choices(string.printable[:90], k=draw.randrange(200)))
    if draw.random() < 0.05:
        path = path.replace(
            "news", draw.choice(["other", "news:balanced", "news:gold", "%00", "é"])
        )
    return "POST", path, raw, headers


def complaint(path: str, reply: Reply) -> str | None:
    """What is wrong with a reply."""
    if reply.status == 0 or reply.status == 500 or b"Traceback" in reply.body:
        return f"{path}: status {reply.status}"
    if reply.status >= 400 and reply.body:
        told, kind = json.loads(reply.body), reply.headers.get("content-type")
        problem = kind == "application/problem+json" and told.get("status") == reply.status
        if path == "/predict":
            own = kind == "application/json" and {"error", "error_type"} <= set(told)
        elif path.endswith("/infer"):
            own = kind == "application/json" and set(told) == {"error"}
        else:
            own = problem
        # A path or a method that there is not is of no dialect.
        if not (own or (problem and reply.status in (404, 405))):
            return f"{path}: an error of no shape: {told}"
    return None


async def fuzz(count: int, seed: int = 0, together: int = 16) -> tuple[Counter, list[str]]:
    """Statuses that came back, and what was wrong."""
    config, promise = Config(tiers=TIERS, limits=LIMITS), Promise(certificate(), share=0.2)
    engine = ServingEngine(model(config=config, promise=promise))
    engine.start()
    app, draw = build_app(engine, name="news"), random.Random(seed)
    statuses: Counter = Counter()
    wrong: list[str] = []
    try:
        for start in range(0, count, together):
            many = [request(draw) for _ in range(min(together, count - start))]
            replies = await asyncio.wait_for(
                asyncio.gather(*(send(app, *one) for one in many)), timeout=60
            )
            for (_, path, body, _), reply in zip(many, replies, strict=True):
                statuses[reply.status] += 1
                if said := complaint(path, reply):
                    wrong.append(f"{said} to {body!r}"[:500])
        good = await send(app, "POST", "/v1/classify", {"input": "a"})
        if good.status != 200 or engine.deaths or not engine.is_idle():
            wrong.append("the server is not as it was")
    finally:
        engine.stop()
    return statuses, wrong


if __name__ == "__main__":
    found, wrong = asyncio.run(fuzz(int(sys.argv[1]), seed=int((sys.argv[2:] or ["0"])[0])))
    sys.stdout.write(f"{dict(sorted(found.items()))}\n" + "\n".join(wrong[:20]) + "\n")
    sys.exit(bool(wrong))
