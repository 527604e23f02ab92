"""The application over ASGI: every dialect, every refusal, and what a client may do to it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asgi import call, call_all, send
from virtual import TIERS, logits, model

from apportion.serving.server.app import build_app
from apportion.serving.server.engine import ServingEngine
from apportion.serving.server.keys import Key, Keyring, digest_of
from apportion.serving.server.openapi import openapi
from apportion.serving.server.terms import Config, Limits

HOME = Path(__file__).parents[2]
LIMITS = Limits(body=5000, body_seconds=0.2, rows=4, characters=400, timeout_ms=20_000.0)
CONFIG = Config(tiers=TIERS, limits=LIMITS)


class Switch:
    """A model that can be made to wait, to fail and to die."""

    def __init__(self):
        self.go, self.calls, self.failing = threading.Event(), 0, []
        self.go.set()

    def __call__(self, input_ids, attention_mask=None, *, budget=1.0):
        self.calls += 1
        assert self.go.wait(10)
        if self.failing:
            raise self.failing.pop()
        return logits(input_ids, attention_mask, budget=budget)


@pytest.fixture
def switch():
    return Switch()


@pytest.fixture
def app(switch):
    engine = ServingEngine(model(switch, config=CONFIG, max_wait=0.05))
    engine.start()
    yield build_app(engine, name="news")
    switch.go.set()
    engine.stop()


def engine_of(app):
    return app.state.service.engine


def classify(app, body, **options):
    return call(app, "POST", "/v1/classify", body, **options)


# Answers.


def test_an_answer_says_what_was_done_for_it(app):
    reply = classify(app, {"input": ["a b", "c"], "tier": "balanced", "target_ms": 9000})
    assert reply.status == 200 and reply.headers["content-type"] == "application/json"
    answer = reply.json
    assert (answer["model"], answer["service_tier"]) == ("news", "balanced")
    assert [row["index"] for row in answer["data"]] == [0, 1]
    wanted = logits(np.array([[2, 3]]), budget=0.5)[0]
    shares = np.exp(wanted) / np.exp(wanted).sum()
    assert answer["data"][0]["num_classes"] == 2
    told = answer["apportion"]
    assert (told["budget"], told["asked"], told["degraded"], told["rung"]) == (0.5, 0.5, False, 0)
    assert told["cost"] == 3 * 0.5 and told["price"] == 2 * told["cost"]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert told["late"] is False and told["certified"] is None and told["units"]
    assert reply.headers["server-timing"].startswith("queue;dur=")
    assert reply.headers["x-apportion-budget"] == "0.5" and reply.headers["x-request-id"]
    assert sum(answer["data"][0]["probs"]) == pytest.approx(1.0, abs=1e-5)
    assert shares.shape == (2,)


def test_a_row_is_answered_as_the_model_answers_it_alone(app):
    both = classify(app, {"input": ["a b c", "d"], "budget": 1.0}).json["data"]
    ids = engine_of(app).queue.model.tokenizer.encode(["a b c", "d"])
    for row, one in zip(both, ids, strict=True):
        powers = np.exp(logits(np.array([one]), budget=1.0)[0])
        np.testing.assert_allclose(row["probs"], powers / powers.sum(), atol=1e-4)


def test_a_request_id_comes_back_and_a_bad_one_is_replaced(app):
    given = {"x-request-id": "mine-7"}
    assert classify(app, {"input": "a"}, headers=given).headers["x-request-id"] == "mine-7"
    assert (
        len(
            classify(app, {"input": "a"}, headers={"x-request-id": "x" * 500}).headers[
                "x-request-id"
            ]
        )
        == 32
    )


def test_the_name_of_a_model_may_carry_a_tier(app):
    names = [one["id"] for one in call(app, "GET", "/v1/models").json["data"]]
    assert names == ["news", "news:low-cost", "news:balanced", "news:high-quality"]
    tiers = [classify(app, {"input": "a", "model": name}).json["service_tier"] for name in names]
    assert tiers == ["low-cost", "low-cost", "balanced", "high-quality"]


@pytest.mark.parametrize(
    ("word", "tier"),
    [
        ("flex", "low-cost"),
        ("default", "balanced"),
        ("priority", "high-quality"),
        ("auto", "low-cost"),
    ],
)
def test_openais_words_for_tiers_are_known(app, word, tier):
    assert classify(app, {"input": "a", "service_tier": word}).json["service_tier"] == tier


def test_a_target_in_milliseconds_chooses_the_budget(app):
    hurried = classify(app, {"input": "a", "tier": "high-quality", "target_ms": 6}).json
    calm = classify(app, {"input": "a", "tier": "high-quality", "target_ms": 9000}).json
    assert hurried["apportion"]["asked"] < calm["apportion"]["asked"] == 1.0


def test_predict_answers_as_clients_of_text_embeddings_inference_expect(app):
    one = call(app, "POST", "/predict", {"inputs": "a b"}).json
    assert [set(part) for part in one] == [{"score", "label"}] * 2
    assert one[0]["score"] >= one[1]["score"]
    same = call(app, "POST", "/predict", {"inputs": ["a b"]}).json
    assert same == one
    reply = call(app, "POST", "/predict", {"inputs": [["a b"], ["c"]], "raw_scores": True})
    assert len(reply.json) == 2 and reply.json[0][0]["score"] <= 0.0
    assert {"x-compute-time", "x-queue-time", "x-inference-time"} <= set(reply.headers)


def test_infer_answers_in_kserves_protocol(app):
    body = {
        "id": "7",
        "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", "b c"]}],
        "parameters": {"priority": 1, "timeout": 9_000_000},
    }
    answer = call(app, "POST", "/v2/models/news/infer", body).json
    assert (answer["id"], answer["model_name"]) == ("7", "news")
    outputs = {one["name"]: one for one in answer["outputs"]}
    assert (
        outputs["probabilities"]["shape"] == [2, 2] and len(outputs["probabilities"]["data"]) == 4
    )
    assert outputs["label"]["data"][0] in ("no", "yes")
    assert answer["parameters"]["tier"] == "high-quality"
    only = {**body, "outputs": [{"name": "label"}]}
    (output,) = call(
        app, "POST", "/v2/models/news:balanced/infer", {**only, "parameters": {}}
    ).json["outputs"]
    assert output["name"] == "label"
    facts = call(app, "GET", "/v2/models/news").json
    assert facts["inputs"][0]["datatype"] == "BYTES"


def test_the_forecast_names_milliseconds_and_cost_of_each_level(app):
    told = call(app, "GET", "/v1/forecast?tokens=32&rows=2").json
    assert [level["budget"] for level in told["levels"]] == [0.125, 0.25, 0.5, 1.0]
    assert told["levels"][-1]["cost"] == 64.0
    times = [level["ms"] for level in told["levels"]]
    assert times == sorted(times) and told["rung"] == 0 and told["queue"]["rows"] == 0
    assert call(app, "GET", "/v1/forecast?tokens=0").status == 422


def test_pages_of_operations(app):
    for path in ("/livez", "/readyz", "/health", "/v2/health/live", "/v2/health/ready", "/v2"):
        assert call(app, "GET", path).status == 200, path
    named = call(app, "GET", "/v1/models").json["data"][0]["id"]
    for name, status in ((named, 200), (f"{named}:balanced", 200), ("other", 404)):
        assert call(app, "GET", f"/v2/models/{name}/ready").status == status
    classify(app, {"input": ["a", "b"], "tier": "balanced"})
    text = call(app, "GET", "/metrics").body.decode()
    assert 'apportion_rows_total{outcome="ok",tier="balanced"} 2.0' in text
    assert "apportion_rung 0.0" in text and "apportion_workers_alive 1.0" in text
    cost = 'apportion_cost_units_total{key="-",tier="balanced"} 1.0'
    assert cost in text and engine_of(app).queue.costs["balanced"] == 1.0
    assert call(app, "GET", "/").headers["content-security-policy"].startswith("default-src 'none'")


def test_fields_that_clients_of_text_embeddings_inference_send_are_taken(app):
    body = {"inputs": "a b", "parameters": {}, "options": {"wait_for_model": True}}
    assert call(app, "POST", "/predict", body).status == 200


def test_a_batch_counts_once_in_the_metrics_of_batches(app):
    classify(app, {"input": ["a", "b", "c"], "tier": "balanced"})
    text = call(app, "GET", "/metrics").body.decode()
    assert 'apportion_batch_rows_count{budget="0.5"} 1.0' in text
    assert 'apportion_batch_rows_sum{budget="0.5"} 3.0' in text
    assert 'apportion_model_seconds_count{budget="0.5"} 1.0' in text


def test_the_interface_is_the_one_that_is_checked_in(app):
    written = json.loads((HOME / "docs" / "openapi.json").read_text(encoding="utf-8"))
    assert written == openapi() == call(app, "GET", "/openapi.json").json
    routes = {(route.path, method) for route in app.routes for method in route.methods - {"HEAD"}}
    described = {
        (path, method.upper()) for path, methods in written["paths"].items() for method in methods
    }
    assert routes == described


# Refusals.

INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        (b"{", 400, "not-json", "not JSON"),
        (b"", 400, "not-json", "not JSON"),
        (b"\xff\xfe", 400, "not-json", "not JSON"),
        (b"[" * 4000, 422, "bad-field", "object"),
        ({}, 422, "bad-field", "missing required field `input`"),
        ({"input": 3}, 422, "bad-field", "Expected `str | array`"),
        ({"input": ["a", None]}, 422, "bad-field", "Expected `str`"),
        ({"input": "a", "buget": 1}, 422, "bad-field", "unknown field `buget`"),
        ({"input": []}, 422, "bad-field", "there is no text"),
        ({"input": "a", "tier": "gold"}, 422, "no-such-tier", "there is no tier 'gold'"),
        ({"input": "a", "budget": 2}, 422, "bad-field", "budget is a number in (0, 1]"),
        ({"input": "a", "budget": "1"}, 422, "bad-field", "Expected `float | null`"),
        ({"input": "a", "tier": "low-cost", "budget": 1}, 403, "tier-not-allowed", "pays for"),
        ({"input": "a", "tier": "a", "service_tier": "b"}, 422, "bad-field", "give one"),
        ({"input": "a", "certificate": True}, 422, "bad-field", "no certificate"),
        ({"input": "a", "model": "other"}, 404, "no-such-model", "see /v1/models"),
        ({"input": ["a"] * 5}, 413, "too-large", "5 texts are more than 4"),
        ({"input": "a" * 401}, 413, "too-large", "401 characters are more than 400"),
        ({"input": "a" * 6000}, 413, "too-large", "more than 5000 bytes"),
    ],
)
def test_what_is_wrong_with_a_request_is_one_sentence(app, body, status, kind, says):
    reply = classify(app, body)
    assert reply.status == status and reply.headers["content-type"] == "application/problem+json"
    problem = reply.json
    assert problem["type"] == f"/problems/{kind}" and says in problem["detail"]
    assert problem["status"] == status and problem["instance"] == reply.headers["x-request-id"]
    assert problem["title"] and "\n" not in problem["detail"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/predict", {"inputs": ["a", "b"]}, 422, "pairs are not classified"),
        ("/predict", {"inputs": [["a", "b"]]}, 422, "pairs are not classified"),
        ("/predict", {"inputs": [["a"]] * 5}, 413, "5 texts are more than 4"),
        ("/predict", {"inputs": "a", "truncation_direction": "left"}, 422, "cut at the right"),
        ("/predict", {"inputs": "a " * 190, "truncate": False}, 413, "may not be cut"),
        ("/v2/models/news/infer", {"inputs": []}, 422, "one input"),
        ("/v2/models/other/infer", INFER, 404, "see /v1/models"),
        ("/v2/models/news/infer", {**INFER, "parameters": {"speed": 1}}, 422, "no parameter"),
        ("/v2/models/news/infer", {**INFER, "parameters": {"budget": "x"}}, 422, "is a number"),
        ("/v2/models/news/infer", {**INFER, "parameters": {"priority": 9}}, 422, "from 1 to 3"),
        ("/v2/models/news/infer", {**INFER, "parameters": {"timeout": 10**320}}, 422, "at most"),
        ("/v2/models/news/infer", {**INFER, "outputs": [{"name": "x"}]}, 422, "outputs are"),
        (
            "/v2/models/news/infer",
            {"inputs": [{"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a"]}]},
            422,
            "have the shape [1]",
        ),
    ],
)
def test_other_dialects_have_their_own_errors(app, path, body, status, says):
    reply = call(app, "POST", path, body)
    assert reply.status == status and reply.headers["content-type"] == "application/json"
    assert says in reply.json["error"]
    assert path != "/predict" or reply.json["error_type"] == "Validation"


def test_pages_and_methods_that_there_are_not_are_problems_too(app):
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/v1/classify", 405),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v2/models/other", 404),
    ):
        reply = call(app, method, path)
        assert reply.status == status and reply.json["status"] == status, path
        assert reply.headers["content-type"] == "application/problem+json"


def test_a_body_of_another_type_is_refused(app):
    reply = classify(app, {"input": "a"}, headers={"content-type": "text/plain"})
    assert reply.status == 415 and "application/json" in reply.json["detail"]


def test_a_body_that_grows_beyond_its_limit_is_cut(app):
    reply = classify(app, None, parts=[(0.0, b'{"input": "'), *[(0.0, b"a" * 1000)] * 9])
    assert reply.status == 413 and reply.headers["connection"] == "close"


def test_a_slow_body_is_cut(app):
    reply = classify(app, None, parts=[(0.0, b'{"input"'), (5.0, b': "a"}')])
    assert reply.status == 408 and "did not arrive in 0.2 s" in reply.json["detail"]


# Load, clients that leave, and models that fail.


def wait_until(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def test_a_full_queue_refuses_the_whole_request_and_says_when_to_come_back(app, switch):
    switch.go.clear()
    body = ("POST", "/v1/classify", {"input": ["a"] * 4, "timeout_ms": 1000})
    replies = call_all(app, *[body] * 8)
    refused = [reply for reply in replies if reply.status == 429]
    assert refused and {reply.status for reply in replies} == {429, 504}
    assert refused[0].json["type"] == "/problems/queue-full"
    assert refused[0].json["retry_after_ms"] > 0 and int(refused[0].headers["retry-after"]) >= 1
    told = call(app, "GET", "/v1/forecast").json
    assert told["refused"] == 4 * len(refused)


def test_a_hard_timeout_is_kept_while_the_model_hangs(app, switch):
    switch.go.clear()
    reply = classify(app, {"input": "a", "timeout_ms": 50})
    assert reply.status == 504 and "no answer in 50 ms" in reply.json["detail"]
    switch.go.set()
    wait_until(engine_of(app).is_idle)
    assert classify(app, {"input": "a"}).status == 200


def test_rows_of_a_request_that_was_not_answered_are_neither_answered_nor_paid_for(app, switch):
    queue = engine_of(app).queue
    queue.model = replace(queue.model, setting=replace(queue.model.setting, max_batch=1))

    def second_hangs(input_ids, attention_mask=None, *, budget=1.0):
        if switch(input_ids, attention_mask, budget=budget) is not None and switch.calls == 1:
            switch.go.clear()
        return logits(input_ids, attention_mask, budget=budget)

    queue.model = replace(queue.model, runtime=second_hangs)
    reply = classify(app, {"input": ["a", "b"], "tier": "balanced", "timeout_ms": 100})
    assert reply.status == 504 and queue.counts["balanced", "answered"] == 1
    text = call(app, "GET", "/metrics").body.decode()
    assert 'apportion_rows_total{outcome="timed_out",tier="balanced"} 2.0' in text
    assert 'outcome="ok"' not in text and "apportion_cost_units_total{" not in text


def test_a_handler_that_is_cancelled_counts_as_a_client_that_left(app, switch):
    switch.go.clear()

    async def cancelled():
        asked = asyncio.ensure_future(send(app, "POST", "/v1/classify", {"input": "a"}))
        while not switch.calls:
            await asyncio.sleep(0.005)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(0)
        return await send(app, "GET", "/metrics")

    text = asyncio.run(cancelled()).body.decode()
    switch.go.set()
    assert 'apportion_rows_total{outcome="cancelled",tier="low-cost"} 1.0' in text


def test_a_client_that_leaves_takes_its_rows_out_of_the_queue(app, switch):
    switch.go.clear()

    async def two():
        first = asyncio.ensure_future(send(app, "POST", "/v1/classify", {"input": "a"}))
        while not switch.calls:  # until it runs
            await asyncio.sleep(0.005)
        waits = engine_of(app).queue.has_rows
        gone = await send(app, "POST", "/v1/classify", {"input": "b"}, leave_when=waits)
        switch.go.set()
        return await first, gone

    first, gone = asyncio.run(two())
    assert first.status == 200 and gone.status == 499
    wait_until(engine_of(app).is_idle)
    assert switch.calls == 1  # the second was never run
    assert engine_of(app).queue.counts["low-cost", "cancelled"] == 1


@pytest.mark.parametrize("error", [RuntimeError("secret text"), SystemExit("dead")])
def test_a_batch_that_fails_once_is_repeated(app, switch, error):
    switch.failing = [error]
    assert classify(app, {"input": "a"}).status == 200
    engine = engine_of(app)
    assert engine.deaths == isinstance(error, SystemExit)
    wait_until(lambda: engine.workers_alive == 1)
    assert call(app, "GET", "/readyz").status == 200


def test_a_batch_that_fails_twice_fails_alone_and_says_nothing_of_why(app, switch):
    switch.failing = [RuntimeError("secret text")] * 2
    reply = classify(app, {"input": "a"})
    assert reply.status == 500 and "secret" not in reply.body.decode()
    assert classify(app, {"input": "a"}).status == 200


def test_answers_that_are_no_numbers_are_failures():
    engine = ServingEngine(model(lambda input_ids, **_: np.full((len(input_ids), 2), np.nan)))
    engine.start()
    try:
        assert classify(build_app(engine, name="x"), {"input": "a"}).status == 500
    finally:
        engine.stop()


def test_texts_are_never_logged(app, caplog, switch):
    caplog.set_level("INFO", "apportion.access")
    import logging

    logging.getLogger("apportion.access").propagate = True
    classify(app, {"input": "very private"}, headers={"x-request-id": "n1"})
    classify(app, {"input": "very private", "tier": "gold"})
    (first, _) = [json.loads(record.getMessage()) for record in caplog.records]
    assert first["id"] == "n1" and first["status"] == 200 and first["tier"] == "low-cost"
    assert "private" not in caplog.text
    assert "private" not in call(app, "GET", "/metrics").body.decode()


def test_a_text_that_may_not_be_cut_is_refused_before_anything_is_computed(app, switch):
    reply = call(app, "POST", "/predict", {"inputs": "a " * 190, "truncate": False})
    assert reply.status == 413 and switch.calls == 0


def test_while_it_drains_nothing_new_is_taken_and_what_waits_is_answered(app, switch):
    switch.go.clear()

    async def drained():
        waiting = asyncio.ensure_future(send(app, "POST", "/v1/classify", {"input": "a"}))
        await asyncio.sleep(0.1)
        engine_of(app).drain(5.0)
        late = await send(app, "POST", "/v1/classify", {"input": "b"})
        ready = await send(app, "GET", "/readyz")
        switch.go.set()
        return await waiting, late, ready

    waiting, late, ready = asyncio.run(drained())
    assert (waiting.status, late.status, ready.status) == (200, 503, 503)
    assert late.json["type"] == "/problems/draining" and "retry-after" in late.headers
    assert ready.json["type"] == "/problems/draining"


def test_a_swap_answers_new_requests_by_the_new_model_and_loses_none(app, switch):
    switch.go.clear()

    def other(input_ids, attention_mask=None, *, budget=1.0):
        return np.tile(np.float32([0.0, 9.0]), (len(input_ids), 1))

    async def swapped():
        before = asyncio.ensure_future(send(app, "POST", "/v1/classify", {"input": "a"}))
        await asyncio.sleep(0.1)
        engine_of(app).swap(replace(engine_of(app).queue.model, runtime=other))
        after = asyncio.ensure_future(send(app, "POST", "/v1/classify", {"input": "a"}))
        await asyncio.sleep(0.05)
        switch.go.set()
        return await before, await after

    before, after = asyncio.run(swapped())
    assert before.json["data"][0]["probs"][1] < 0.999 < after.json["data"][0]["probs"][1]


# Keys.


@pytest.fixture
def locked():
    engine = ServingEngine(model(config=CONFIG))
    engine.start()
    keys = [
        Key(digest_of("s3"), "ann", ("low-cost",), 1.0),
        Key(digest_of("s4"), "bob", None, None),
    ]
    yield build_app(engine, name="news", keyring=Keyring(keys, clock=lambda: 0.0))
    engine.stop()


def test_without_a_key_nobody_is_answered(locked):
    for path in ("/v1/models", "/v1/forecast", "/metrics"):
        reply = call(locked, "GET", path)
        assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer", path
    assert classify(locked, {"input": "a"}).status == 401
    wrong = classify(locked, {"input": "a"}, headers={"authorization": "Bearer nope"})
    assert wrong.status == 401 and wrong.json["type"] == "/problems/unknown-key"
    assert call(locked, "GET", "/livez").status == call(locked, "GET", "/readyz").status == 200


def test_a_key_has_its_tiers_and_its_rate(locked):
    ann = {"authorization": "Bearer s3"}
    assert classify(locked, {"input": "a"}, headers=ann).json["service_tier"] == "low-cost"
    assert classify(locked, {"input": "a", "tier": "balanced"}, headers=ann).status == 403
    for _ in range(3):
        last = classify(locked, {"input": "a " * 60}, headers=ann)
    assert last.status == 429 and last.json["type"] == "/problems/rate"
    bob = {"x-api-key": "s4"}
    assert classify(locked, {"input": "a", "tier": "balanced"}, headers=bob).status == 200
    shown = [call(locked, "GET", "/v1/forecast", headers=one).json["tiers"] for one in (ann, bob)]
    assert [[tier["name"] for tier in tiers] for tiers in shown] == [
        ["low-cost"],
        ["low-cost", "balanced", "high-quality"],
    ]
    text = call(locked, "GET", "/metrics", headers=bob).body.decode()
    assert 'key="ann"' in text and "s3" not in text
