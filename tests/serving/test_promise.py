"""Certificates in the server: who keeps the promise, who loses it, and when it ends."""

from __future__ import annotations

import json
from typing import ClassVar

import numpy as np
import pytest
from asgi import call
from virtual import IDENTITY, LEVELS, VirtualClock, certificate, model

from apportion.serving.server.admitted import ANSWERED
from apportion.serving.server.app import build_app
from apportion.serving.server.engine import ServingEngine
from apportion.serving.server.promise import CERTIFICATE, Audit, Promise, Unpromised, find_promise
from apportion.serving.server.queueing import Queue
from apportion.serving.server.terms import Asked, agree

SURE, DOUBTFUL = [2] * 8, [3] * 8  # what a level is sure of, and what none but the whole model is


def doubting(input_ids, attention_mask=None, *, budget=1.0):
    """Sure of rows of 2s at every level; of others at the whole model alone."""
    sure = (input_ids[:, 0] == 2) | (budget == 1.0)
    return np.where(sure[:, None], [[4.0, 0.0]], [[0.0, 0.1]]).astype(np.float32)


def softened(logits):
    powers = np.exp(logits.astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


def watched(share=0.0, **changes):
    return Promise(certificate(**changes), share=share, salt="x")


def submit(queue, ids, certified=True, number="n"):
    served = queue.model
    terms = agree(Asked("high-quality", certificate=certified), served.config, levels=LEVELS)
    return queue.submit(
        ids, terms, model=served, received=queue.clock(), done=lambda _: None, number=number
    )


def run(queue):
    """One batch; the level that it ran at."""
    batch = queue.take() or queue.take_audit()
    queue.clock.now += 0.001
    queue.finish(batch, softened(doubting(**batch.inputs(), budget=batch.level)))
    return batch.level


def queue_of(promise, **caps):
    return Queue(model(doubting, promise=promise, **caps), clock=VirtualClock())


def test_a_row_ends_at_the_first_level_that_is_sure_and_pays_for_all_that_were_asked():
    queue = queue_of(watched())
    request = submit(queue, [SURE, DOUBTFUL])
    assert [run(queue), run(queue), run(queue)] == [0.125, 0.25, 1.0]
    easy, hard = request.rows
    assert (easy.level, hard.level) == (0.125, 1.0) and easy.certified and hard.certified
    assert easy.cost == 8 * 0.125 and hard.cost == pytest.approx(8 * 1.375)
    assert request.outcome == ANSWERED and queue.is_empty()
    assert queue.model.promise.ends == {0.125: 1, 1.0: 1}


def test_who_asks_for_no_certificate_is_answered_as_before():
    queue = queue_of(watched())
    request = submit(queue, [SURE], certified=False)
    assert run(queue) == 1.0 and request.rows[0].certified is None
    assert not queue.model.promise.ends


def overloaded(queue):
    """So many rows that the ladder is at its end."""
    for _ in range(60):
        submit(queue, [[4] * 60], certified=False)


def test_overload_takes_the_promise_from_rows_before_anything_is_known_of_them():
    queue = queue_of(watched(), max_wait=9.0)
    queue.clock.now = 1.0
    request = submit(queue, [SURE, DOUBTFUL])
    overloaded(queue)
    levels = [run(queue) for _ in range(3)]
    assert levels[0] == 0.125 and request.outcome == ANSWERED
    assert [row.certified for row in request.rows] == [False, False]  # the easy one too
    assert [row.level for row in request.rows] == [0.125, 0.125]
    assert queue.model.promise.without == {"load": 2}


def test_a_row_that_is_under_way_keeps_its_promise_whatever_comes():
    queue = queue_of(watched(), max_wait=9.0)
    request = submit(queue, [DOUBTFUL])
    assert run(queue) == 0.125
    overloaded(queue)
    while request.open:
        run(queue)
    (row,) = request.rows
    assert row.certified and row.level == 1.0


def test_a_row_that_goes_on_while_the_server_ends_is_due_by_the_end():
    queue = queue_of(watched())
    request = submit(queue, [DOUBTFUL])
    batch = queue.take()
    queue.drain(0.05)
    queue.finish(batch, softened(doubting(**batch.inputs(), budget=batch.level)))
    assert request.rows[0].facts.deadline <= 0.05
    run(queue), run(queue)
    assert request.rows[0].certified


def test_a_failure_at_a_later_level_is_repeated_too():
    queue = queue_of(watched())
    request = submit(queue, [DOUBTFUL])
    run(queue)
    queue.fail(queue.take(), RuntimeError("no"))
    assert request.open and run(queue) == 0.25
    queue.fail(queue.take(), RuntimeError("no"))
    assert request.open and run(queue) == 1.0
    assert request.outcome == ANSWERED and request.rows[0].certified


def test_audits_wait_until_nobody_does_and_look_at_answers_in_their_order():
    queue = queue_of(watched(share=1.0))
    submit(queue, [SURE, DOUBTFUL])
    promise = queue.model.promise
    assert [run(queue) for _ in range(3)] == [0.125, 0.25, 1.0]
    assert promise.drawn == 2 and promise.drift.audited == 0
    submit(queue, [SURE], certified=False)
    assert queue.take_audit() is None
    assert run(queue) == 1.0  # the row that waits
    assert run(queue) == 1.0  # the easy answer is asked of the whole model
    assert queue.take_audit() is None  # the other was its own
    assert (promise.drift.audited, promise.drift.differed) == (2, 0)
    assert queue.costs["high-quality"] == 8 * (0.125 + 1.375 + 1.0)  # audits are not paid for


def test_which_answers_are_audited_is_a_matter_of_their_ids_and_of_nothing_else():
    drawn = []
    for label in (0, 1):
        promise = watched(share=0.3)
        for n in range(100):
            promise.draw(f"{n}/0", Audit([2], label, False, None))
        drawn.append(promise.drawn)
    assert drawn[0] == drawn[1] and 15 < drawn[0] < 45
    other = Promise(certificate(), share=0.3)
    assert other.salt != Promise(certificate(), share=0.3).salt  # nobody can choose his audits


def alarmed(promise):
    while not promise.drift.alarm:
        promise.drift.observe(True)
    return promise


def test_after_an_alarm_the_whole_model_answers_and_load_may_lower_it():
    queue = queue_of(alarmed(watched()), max_wait=9.0)
    request = submit(queue, [SURE])
    assert run(queue) == 1.0 and request.rows[0].certified
    request = submit(queue, [SURE])
    overloaded(queue)
    while request.open:
        run(queue)
    assert request.rows[0].certified is False and request.rows[0].level < 1.0


def test_a_swap_keeps_audits_and_alarm_of_the_same_certificate_alone():
    queue = queue_of(alarmed(watched()))
    queue.swap(model(doubting, promise=watched()))
    assert queue.promised()["alarm"]
    queue.swap(model(doubting, promise=watched(rows=999)))
    assert not queue.promised()["alarm"]
    queue.swap(model(doubting))
    assert queue.promised() == {}


def test_an_audit_that_fails_is_forgotten():
    queue = queue_of(watched(share=1.0))
    submit(queue, [SURE])
    run(queue)
    queue.fail(queue.take_audit(), RuntimeError("no"))
    assert queue.is_empty() and queue.take_audit() is None
    assert queue.model.promise.drift.audited == 0


class Held:
    """What a promise is checked against."""

    facts: ClassVar[dict] = {}
    levels, identity = LEVELS, IDENTITY


def test_the_certificate_of_the_folder_is_found_and_one_of_another_model_is_left_out(tmp_path):
    assert isinstance(found(tmp_path), Unpromised)
    certificate().save(tmp_path / CERTIFICATE)
    assert found(tmp_path).certificate == certificate()
    certificate(identity={**IDENTITY, "runtime": "other 1"}).save(tmp_path / CERTIFICATE)
    left_out = found(tmp_path)
    assert "other runtime (other 1)" in left_out.why and str(tmp_path) not in left_out.why
    (tmp_path / CERTIFICATE).write_text("{}")
    assert "certificate.json is not a certificate" in found(tmp_path).why
    with pytest.raises(ValueError, match="is not a certificate"):
        found(tmp_path, tmp_path / CERTIFICATE)
    with pytest.raises(ValueError, match="there is no certificate"):
        found(tmp_path, tmp_path / "none.json")
    certificate(levels=(0.5, 1.0), thresholds=(0.1,)).save(tmp_path / CERTIFICATE)
    assert "is of the levels 0.5, 1" in found(tmp_path).why


def found(folder, file=None):
    return find_promise(Held(), folder, file=file, share=0.1)


# Over HTTP.


@pytest.fixture
def promised():
    engine = ServingEngine(model(doubting, promise=watched(share=1.0)))
    engine.start()
    yield build_app(engine, name="news")
    engine.stop()


def classify(app, body):
    return call(app, "POST", "/v1/classify", body)


def test_answers_say_whether_they_are_certified(promised):
    reply = classify(promised, {"input": ["a a", "b"], "certificate": True}).json
    assert reply["service_tier"] == "high-quality"  # the first that pays for the whole model
    assert reply["apportion"]["certified"] is True
    assert all(row["certified"] for row in reply["data"])
    assert classify(promised, {"input": "a"}).json["apportion"]["certified"] is None
    body = {
        "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
        "parameters": {"certificate": True},
    }
    told = call(promised, "POST", "/v2/models/news/infer", body).json["parameters"]
    assert told["certified"] is True and told["tier"] == "high-quality"
    wrong = {**body, "parameters": {"certificate": "yes"}}
    assert call(promised, "POST", "/v2/models/news/infer", wrong).status == 422


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        ({"budget": 1.0}, 422, "budgets of its own"),
        ({"min_budget": 0.5}, 422, "budgets of its own"),
        ({"tier": "balanced"}, 403, "may take the whole model; tier 'balanced' pays for"),
    ],
)
def test_a_certificate_needs_the_whole_model_and_no_other_budget(promised, more, status, says):
    reply = classify(promised, {"input": "a", "certificate": True, **more})
    assert reply.status == status and says in reply.json["detail"]


def test_the_server_tells_what_it_promises_and_how_that_does(promised):
    classify(promised, {"input": "a", "certificate": True})
    names = call(promised, "GET", "/v1/models").json["data"]
    told = {one["id"]: one["certificate"] for one in names}
    assert told["news"] == told["news:high-quality"]
    assert told["news"] == {"disagree_at_most": 0.01, "confidence": 0.95}
    assert told["news:balanced"] is None
    state = call(promised, "GET", "/v1/forecast").json["certificate"]
    assert state["levels"] == [0.125, 0.25, 1.0] and sum(state["ends"].values()) == 1
    assert state["alarm"] is False and state["wealth"] > 0.0
    alarmed(promised.state.service.engine.queue.model.promise)
    text = call(promised, "GET", "/metrics").body.decode()
    assert "apportion_certificate_alarm 1.0" in text
    assert 'apportion_certified_rows_total{budget="' in text and 'certified="yes"} 1.0' in text
    assert call(promised, "GET", "/v1/forecast").json["certificate"]["levels"] == [1.0]


def test_why_there_is_no_certificate_is_said_to_who_asks():
    engine = ServingEngine(model(promise=Unpromised("it is of another runtime")))
    engine.start()
    try:
        reply = classify(build_app(engine, name="x"), {"input": "a", "certificate": True})
    finally:
        engine.stop()
    assert reply.status == 422 and "another runtime" in json.dumps(reply.json)
