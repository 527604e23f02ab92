"""The queue under any order of events: nothing is lost, nothing is answered twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from virtual import LEVELS, VirtualClock, certificate, logits, model

from apportion.serving.guarantees.cascade import margins_of
from apportion.serving.runtime.prediction import softmax
from apportion.serving.server.admitted import ANSWERED, CANCELLED, FAILED, TIMED_OUT
from apportion.serving.server.promise import Promise
from apportion.serving.server.queueing import Queue
from apportion.serving.server.setting import RESERVED
from apportion.serving.server.terms import Asked, Refusal, agree

CAPS = {"workers": 2, "max_wait": 0.4, "max_tokens": 1500, "max_rows": 30, "max_batch": 6}
ENDS = {ANSWERED, FAILED, CANCELLED, TIMED_OUT}
TIMES = st.floats(0.001, 0.3)
PROMISED = certificate()


def served():
    return model(promise=Promise(PROMISED, share=0.3, salt="x"), **CAPS)


def answers(batch):
    ids = [batch.audit.ids] if batch.audit else [row.ids for row in batch.rows]
    shares = [softmax(logits(np.array([one]), budget=batch.level))[0] for one in ids]
    return np.array(shares, np.float64)


def way_of(row, stages):
    """The levels that the cascade would ask a row at, and its answer."""
    levels = []
    for level, least in stages:
        levels.append(level)
        share = softmax(logits(np.array([row.ids]), budget=level)).astype(np.float64)
        if margins_of(share)[0] >= least:
            break
    return levels, share[0]


class Serving(RuleBasedStateMachine):
    """Clients that come and go, workers that are slow or fail, swaps, and an end."""

    def __init__(self):
        super().__init__()
        self.clock = VirtualClock()
        self.queue = Queue(served(), clock=self.clock)
        self.requests, self.batches = [], []
        self.done, self.stages = [], {}

    @rule(
        lengths=st.lists(st.integers(1, 128), min_size=1, max_size=5),
        tier=st.sampled_from(["low-cost", "balanced", "high-quality"]),
        budget=st.sampled_from([None, None, 0.125, 0.25]),
        due_ms=st.floats(1.0, 400.0),
        timeout=st.sampled_from([20.0, 30_000.0]),
        promised=st.booleans(),
    )
    def submit(self, lengths, tier, budget, due_ms, timeout, promised):
        served = self.queue.model
        asked = Asked(tier, budget, target_ms=due_ms, timeout_ms=timeout)
        if promised:
            asked = Asked("high-quality", None, None, due_ms, timeout, True)
        terms = agree(asked, served.config, levels=LEVELS)
        ids = [[2 + n % 5] * n for n in lengths]
        before, ended = self.waiting(), self.queue.end is not None
        try:
            request = self.queue.submit(
                ids, terms, model=served, received=self.clock.now, done=self.done.append
            )
        except Refusal as refusal:
            assert refusal.kind == ("draining" if ended else "queue-full")
            assert self.waiting() == before  # all or none
            return
        assert not ended and len(self.waiting()) == len(before) + len(lengths)
        state = self.queue.state()
        assert state["rows"] <= 30 and state["tokens"] <= 1500 and state["wait"] <= 0.4 + 1e-9
        self.requests.append(request)
        self.stages[id(request)] = served.promise.stages  # an alarm leaves one
        self.dispatch()

    def dispatch(self):
        """Every idle worker asks for a batch."""
        while len(self.batches) < CAPS["workers"]:
            batch = self.queue.take()
            if batch is None:
                assert not self.waiting()
                batch = self.queue.take_audit()
            if batch is None:
                break
            assert all(row.outcome is None for row in batch.rows)
            assert {row.request.model for row in batch.rows} == {batch.model} or batch.audit
            assert not any(row in other.rows for other in self.batches for row in batch.rows)
            for row in batch.rows:
                terms = row.request.terms
                assert terms.lowest <= batch.level <= row.asked <= terms.highest
            self.batches.append(batch)

    @rule(seconds=TIMES)
    def wait(self, seconds):
        self.clock.now += seconds

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), seconds=TIMES)
    def finish(self, data, seconds):
        batch = self.batches.pop(data.draw(st.integers(0, len(self.batches) - 1)))
        self.clock.now += seconds
        self.queue.finish(batch, answers(batch))
        self.dispatch()

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def fail(self, data):
        """A worker that dies, or a model that raises."""
        batch = self.batches.pop(data.draw(st.integers(0, len(self.batches) - 1)))
        others = {
            row: row.outcome
            for request in self.requests
            for row in request.rows
            if row.request not in {one.request for one in batch.rows}
        }
        self.queue.fail(batch, RuntimeError("dead"))
        assert all(row.outcome == before for row, before in others.items())
        for row in batch.rows:
            assert row.outcome or row.facts.alone
            assert row.outcome != FAILED or row.tries == 2
        self.dispatch()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def leave(self, data):
        request = data.draw(st.sampled_from(self.requests))
        self.queue.cancel(request)
        assert all(row.outcome for row in request.rows)

    @rule()
    def swap(self):
        before = self.queue.model.promise
        self.queue.swap(served())
        assert self.queue.model.promise is before  # the certificate is the same one

    @precondition(lambda self: self.requests)
    @rule(grace=st.floats(0.1, 2.0))
    def drain(self, grace):
        if self.queue.end is None and len(self.requests) > 5:
            self.queue.drain(grace)

    def waiting(self):
        return set(self.queue._waiting)

    @invariant()
    def no_worker_is_idle_while_rows_wait(self):
        assert len(self.batches) == CAPS["workers"] or not self.waiting()

    @invariant()
    def sums_are_those_of_the_rows(self):
        rows = self.queue._waiting.values()
        state = self.queue.state()
        assert state["rows"] == len(rows)
        assert state["tokens"] == sum(row.facts.length for row in rows)

    @invariant()
    def requests_end_once(self):
        assert len({id(request) for request in self.done}) == len(self.done)
        for request in self.done:
            assert all(row.outcome in ENDS for row in request.rows)

    def teardown(self):
        self.queue.drain(5.0)
        while self.batches or self.waiting():
            self.dispatch()
            if not self.batches:
                assert not self.waiting()  # the last ones waited for too long
                break
            batch = self.batches.pop()
            self.clock.now += 0.001
            self.queue.finish(batch, answers(batch))
        assert self.queue.is_empty() and len(self.done) == len(self.requests)
        rows = [row for request in self.requests for row in request.rows]
        assert sum(self.queue.counts.values()) == len(rows)
        answered = [row for row in rows if row.outcome == ANSWERED]
        for row in answered:
            terms = row.request.terms
            assert terms.lowest <= row.level <= terms.highest
            alone = softmax(logits(np.array([row.ids]), budget=row.level))[0]
            np.testing.assert_allclose(row.probabilities, alone, atol=1e-4)
            assert (row.certified is None) == (not terms.certificate)
            if row.certified:  # then it went the cascade's whole way, whatever the load was
                levels, share = way_of(row, self.stages[id(row.request)])
                assert row.level == levels[-1]
                np.testing.assert_allclose(row.probabilities, share, atol=1e-4)
                assert row.cost == pytest.approx(len(row.ids) * sum(levels))
            else:
                assert row.cost == pytest.approx(len(row.ids) * row.level)
        promise = self.queue.model.promise
        asked = [row for row in answered if row.certified is not None]
        assert sum(promise.ends.values()) == sum(row.certified for row in asked)
        assert sum(promise.without.values()) == sum(not row.certified for row in asked)
        cost = sum(row.cost for row in answered)
        assert sum(self.queue.costs.values()) == pytest.approx(cost)


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def submit(queue, count=1, done=lambda request: None, **asked):
    served = queue.model
    terms = agree(Asked("high-quality", **asked), served.config, levels=LEVELS)
    ids = [[3] * 60] * count
    return queue.submit(ids, terms, model=served, received=queue.clock(), done=done)


def test_a_request_that_waited_too_long_times_out_before_it_is_run():
    clock = VirtualClock()
    queue = Queue(model(), clock=clock)
    request = submit(queue, timeout_ms=50.0)
    clock.now = 0.06
    assert queue.take() is None and request.outcome == TIMED_OUT


def answered_after(queue, seconds, **asked):
    submit(queue, **asked)
    batch = queue.take()
    queue.clock.now += seconds
    queue.finish(batch, np.zeros((1, 2)))


def test_rows_that_come_late_leave_more_for_others_until_no_more_do():
    queue = Queue(model(), clock=VirtualClock())
    answered_after(queue, 0.01, target_ms=100.0)
    assert queue.reserve.share == RESERVED
    answered_after(queue, 0.2, target_ms=100.0)
    raised = queue.reserve.share
    assert raised > RESERVED
    answered_after(queue, 0.01, target_ms=100.0)
    assert RESERVED < queue.reserve.share < raised
    for _ in range(200):
        answered_after(queue, 0.2, target_ms=100.0)
    assert 0.9 < queue.reserve.share < 1.0  # budgets fall, and rows are still served


def test_what_runs_for_a_client_that_left_counts_as_wasted():
    queue = Queue(model(), clock=VirtualClock())
    gone, there = submit(queue, target_ms=1000.0), submit(queue, target_ms=1000.0)
    batch = queue.take()
    assert len(batch.rows) == 2
    queue.cancel(gone)
    queue.clock.now += 0.2
    queue.finish(batch, np.zeros((2, 2)))
    assert there.outcome == ANSWERED
    assert (queue.spent, queue.wasted) == (pytest.approx(0.2), pytest.approx(0.1))


def test_a_target_that_nobody_could_meet_teaches_nothing():
    queue = Queue(model(), clock=VirtualClock())
    answered_after(queue, 0.01, target_ms=1.0)
    assert queue.reserve.share == RESERVED


def test_a_request_that_came_later_and_waits_for_less_times_out_first():
    queue = Queue(model(), clock=VirtualClock())
    patient, hasty = submit(queue, timeout_ms=500.0), submit(queue, timeout_ms=50.0)
    queue.clock.now = 0.06
    assert queue.take().rows == patient.rows and hasty.outcome == TIMED_OUT


def test_a_request_is_failed_if_a_row_is_and_the_others_are_let_go():
    queue = Queue(model(), clock=VirtualClock())
    request = submit(queue, 2)
    first = queue.take()
    assert len(first.rows) == 2
    queue.fail(first, RuntimeError("no"))
    second = queue.take()
    assert len(second.rows) == 1  # alone, so that it can spoil no other
    queue.fail(second, RuntimeError("no"))
    assert request.outcome == FAILED and queue.take() is None
    assert [row.outcome for row in request.rows].count(CANCELLED) == 1


def test_an_answer_to_a_row_that_is_gone_is_dropped():
    queue = Queue(model(), clock=VirtualClock())
    request = submit(queue)
    batch = queue.take()
    queue.cancel(request)
    queue.finish(batch, np.zeros((1, 2)))
    assert request.outcome == CANCELLED and request.rows[0].probabilities is None
    assert queue.costs == {} and queue.is_empty()


def test_a_model_with_other_labels_is_not_swapped_in():
    queue = Queue(model())
    before = queue.model
    with pytest.raises(ValueError, match="start another server for other labels"):
        queue.swap(model(classes=("a", "b")))
    assert queue.model is before


def test_rows_of_the_old_model_are_answered_by_it():
    queue = Queue(model(), clock=VirtualClock())
    old = queue.model
    submit(queue)
    queue.swap(model())
    submit(queue)
    assert queue.take().model is old
    assert queue.take().model is queue.model


def test_slow_batches_correct_the_forecast_and_the_correction_is_bounded():
    clock = VirtualClock()
    queue = Queue(model(), clock=clock)
    for seconds in [*[5.0] * 40, *[0.0] * 80]:
        submit(queue, budget=1.0)
        batch = queue.take()
        clock.now += seconds
        queue.finish(batch, np.zeros((1, 2)))
        assert 0.5 <= queue.ratio <= 8.0
        assert seconds == 0.0 or queue.ratio > 1.0
    assert queue.ratio == 0.5


def test_what_a_grace_period_cannot_hold_is_given_up():
    queue = Queue(model(), clock=VirtualClock())
    ended = []
    submit(queue, 2, ended.append)
    queue.take()
    submit(queue, 2, ended.append)
    queue.drain(0.001)
    queue.give_up()
    assert [request.outcome for request in ended] == [CANCELLED, CANCELLED]
