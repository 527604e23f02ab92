"""The engine's threads: cores, drain, and texts that can't be encoded."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from virtual import LEVELS, Affine, logits, model

from apportion.serving.runtime.prediction import softmax
from apportion.serving.server import engine as engines
from apportion.serving.server.admitted import ANSWERED, CANCELLED
from apportion.serving.server.engine import (
    ServingEngine,
    Ticket,
    load_model,
    setting_of,
    share_cores,
    usable_cores,
)
from apportion.serving.server.terms import Asked, Capacity, Config, Refusal, agree


class Ends:
    """Waits for tickets."""

    def __init__(self):
        self.ended, self.changed = [], threading.Condition()

    def __call__(self, ticket):
        with self.changed:
            self.ended.append(ticket)
            self.changed.notify()

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.ended) >= count, 30)
        return self.ended


@pytest.fixture
def started():
    made = []

    def start(*args, **options):
        made.append(ServingEngine(model(*args, **options)))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()


def ticket(engine, done, texts=("a b",), **asked):
    terms = agree(Asked("high-quality", **asked), engine.queue.model.config, levels=LEVELS)
    return Ticket(texts, terms, engine.queue.model, done)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", None), ("200000 100000", 2), ("50000 100000", 1), ("?", None)],
)
def test_cores_are_those_of_the_quota(tmp_path, monkeypatch, text, cores):
    monkeypatch.setattr(engines.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text(text)
    mine = tmp_path / "mine"
    mine.write_text("0::/\n")
    assert usable_cores(tmp_path, mine) == (cores or 8)
    assert usable_cores(tmp_path / "none", mine) == 8


def test_the_least_quota_of_the_groups_that_a_process_is_in_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(engines.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    mine = tmp_path / "mine"
    mine.write_text("1:cpu:/old\n0::/a.slice/b.service\n")
    (tmp_path / "a.slice" / "b.service").mkdir(parents=True)
    (tmp_path / "a.slice" / "b.service" / "cpu.max").write_text("300000 100000")
    assert usable_cores(tmp_path, mine) == 3
    (tmp_path / "a.slice" / "cpu.max").write_text("200000 100000")
    assert usable_cores(tmp_path, mine) == 2


@pytest.mark.parametrize(
    ("cores", "machine", "shape"),
    [
        (1, Capacity(), (1, 1)),
        (2, Capacity(), (1, 1)),
        (4, Capacity(), (1, 4)),
        (16, Capacity(), (4, 4)),
        (128, Capacity(), (16, 8)),
        (8, Capacity(workers=8), (8, 1)),
        (2, Capacity(workers=2, threads=3), (2, 3)),
    ],
)
def test_workers_and_threads_share_the_cores(cores, machine, shape):
    assert share_cores(cores, machine) == shape


def test_the_setting_takes_the_margin_of_the_forecast_and_the_caps_of_the_machine():
    class Measured(Affine):
        margin = 0.25

    config = Config(machine=Capacity(max_batch=5, max_wait_s=2)).fitted(LEVELS)
    made = setting_of(config, LEVELS, Measured(), longest=128)
    assert (made.margin, made.max_batch, made.max_wait) == (0.25, 5, 2)
    assert made.rungs[0]["high-quality"] == 1.0 and 0.0 < made.reply < 0.01


def test_texts_that_were_taken_before_the_end_are_answered(started):
    gate = threading.Event()

    def gated(input_ids, attention_mask=None, *, budget=1.0):
        assert gate.wait(20)
        return logits(input_ids, attention_mask, budget=budget)

    engine, ends = started(gated), Ends()
    for _ in range(20):
        engine.ask(ticket(engine, ends))
    engine.drain(20)
    with pytest.raises(Refusal, match="about to end"):
        engine.ask(ticket(engine, ends))
    gate.set()
    assert {one.request.outcome for one in ends.wait_for(20)} == {ANSWERED}
    assert engine.is_idle() and engine.trouble() == "it is about to end"


def test_a_drain_lowers_budgets_so_that_the_queue_fits(started):
    """Three times what the grace period holds at the whole budget."""

    def paced(input_ids, attention_mask=None, *, budget=1.0):
        time.sleep(Affine().milliseconds(rows=len(input_ids), length=64, level=budget) / 4000)
        return logits(input_ids, attention_mask, budget=budget)

    engine, ends = started(paced), Ends()
    text = " ".join("abcdefg"[n % 7] for n in range(64))
    for _ in range(60):
        engine.ask(ticket(engine, ends, [text], target_ms=60_000))
    engine.drain(60 * 0.0336 / 3)
    ended = ends.wait_for(60)
    assert {one.request.outcome for one in ended} == {ANSWERED}
    assert min(one.request.rows[0].level for one in ended) < 0.5


def test_the_end_does_not_move_while_texts_are_encoded(started):
    gate = threading.Event()

    class Slow:
        length = 128

        def __init__(self, words):
            self.words, self.pad_arrays = words, words.pad_arrays

        def encode(self, texts):
            assert gate.wait(20)
            return self.words.encode(texts)

    engine, ends = started(), Ends()
    engine.queue.model = replace(engine.queue.model, tokenizer=Slow(engine.queue.model.tokenizer))
    engine.ask(ticket(engine, ends))
    told = engine.queue.clock()
    engine.drain(10.0)
    time.sleep(0.2)
    gate.set()
    ends.wait_for(1)
    while engine.queue.end is None:
        time.sleep(0.001)
    assert 9.0 < engine.queue.end - told < 10.0


def test_a_text_that_breaks_the_tokenizer_spoils_no_other_request(started):
    class Touchy:
        length = 128

        def __init__(self, words):
            self.words, self.pad_arrays = words, words.pad_arrays

        def encode(self, texts):
            if any("boom" in text for text in texts):
                raise RuntimeError("no such text")
            return self.words.encode(texts)

    engine, ends = started(), Ends()
    engine.queue.model = replace(engine.queue.model, tokenizer=Touchy(engine.queue.model.tokenizer))
    for text in ("a", "boom", "b"):
        engine.ask(ticket(engine, ends, [text]))
    ended = ends.wait_for(3)
    assert sorted(one.refusal is None for one in ended) == [False, True, True]
    assert engine.is_idle()


def test_requests_that_are_encoded_together_each_get_their_own_rows(started):
    class Gated:
        length = 128

        def __init__(self, words):
            self.words, self.pad_arrays, self.gate = words, words.pad_arrays, threading.Event()

        def encode(self, texts):
            assert self.gate.wait(20)
            return self.words.encode(texts)

    engine, ends = started(), Ends()
    words = Gated(engine.queue.model.tokenizer)
    engine.queue.model = replace(engine.queue.model, tokenizer=words)
    long = "a " * 1500  # so long that the encoder has it, and holds the others up
    asked = [[long], ["b b", "c"], ["d d d", "e", "f"], ["g g"]]
    for texts in asked:
        engine.ask(ticket(engine, ends, texts))
    words.gate.set()
    ends.wait_for(len(asked))
    got = sorted(tuple(map(tuple, (row.ids for row in one.request.rows))) for one in ends.ended)
    assert got == sorted(tuple(map(tuple, words.words.encode(texts))) for texts in asked)


def test_a_short_text_is_encoded_at_once_if_nobody_else_is_there(started):
    class Noting:
        length = 128

        def __init__(self, words):
            self.words, self.pad_arrays, self.threads = words, words.pad_arrays, []

        def encode(self, texts):
            self.threads.append(threading.current_thread().name)
            return self.words.encode(texts)

    engine, ends = started(), Ends()
    words = Noting(engine.queue.model.tokenizer)
    engine.queue.model = replace(engine.queue.model, tokenizer=words)
    for n, text in enumerate(["a b", "a " * 1500]):
        engine.ask(ticket(engine, ends, [text]))
        ends.wait_for(n + 1)
    assert words.threads == [threading.current_thread().name, "encoder"]


def test_an_engine_that_stops_cancels_what_waits(started):
    gate, ends = threading.Event(), Ends()

    def gated(input_ids, attention_mask=None, *, budget=1.0):
        gate.wait(1)
        return logits(input_ids, attention_mask, budget=budget)

    engine = started(gated)
    for _ in range(3):
        engine.ask(ticket(engine, ends, budget=1.0))
    time.sleep(0.05)
    threading.Timer(0.2, gate.set).start()
    engine.stop()
    outcomes = {one.request.outcome for one in ends.wait_for(3) if one.request}
    assert outcomes <= {CANCELLED, ANSWERED}


def test_the_number_of_workers_stays(started):
    engine = started()
    with pytest.raises(ValueError, match="workers can't be changed"):
        engine.swap(model(workers=3))


@pytest.mark.slow
def test_a_row_in_any_batch_is_answered_as_the_model_answers_it_alone(tmp_path):
    from small_export import write_export
    from texts import rows
    from written_forecast import write_forecast

    folder = write_export(tmp_path)
    write_forecast(folder)
    served = load_model(folder, Config(machine=Capacity(threads=1)))
    engine, ends = ServingEngine(served), Ends()
    engine.start()
    texts = [text for _, text in rows(40, 3)]
    try:
        for budget in (0.25, 0.5, 1.0):
            terms = agree(Asked(budget=budget), served.config, levels=served.levels)
            engine.ask(Ticket(texts, terms, served, ends))
        ended = ends.wait_for(3)
    finally:
        engine.stop()
    batches = set()
    for one in ended:
        for text, row in zip(texts, one.request.rows, strict=True):
            alone = served.tokenizer.pad_arrays(served.tokenizer.encode([text]))
            wanted = softmax(served.runtime(**alone, budget=row.level))[0]
            np.testing.assert_allclose(row.probabilities, wanted, atol=1e-4)
            batches.add(row.batch)
    assert max(batches) > 1
