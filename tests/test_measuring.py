from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from apportion import scoring
from apportion.backbones.encoder import Encoder, EncoderConfig
from apportion.benchmark import (
    count_macs,
    count_parameters,
    elastic_arms,
    measure,
    median_interval,
    time_arms,
)
from apportion.elastic import Elastic
from apportion.evaluation import (
    SWEEP,
    Outcome,
    Point,
    evaluate,
    is_monotone,
    rank_agreement,
    retention,
    sweep,
)
from apportion.surgery import cut
from apportion.units import Allocation, Units


@pytest.fixture
def elastic(encoder):
    elastic = Elastic(encoder, length=12)
    torch.nn.init.normal_(elastic.gates.a)
    return elastic.eval()


def test_accuracy_and_loss_are_those_of_the_rows(encoder, task):
    score = evaluate(encoder, task.test, batch_size=10)
    logits = encoder(task.test.inputs["input_ids"])
    expected = (logits.argmax(-1) == task.test.labels).float().mean()
    assert score.accuracy == pytest.approx(float(expected))
    loss = torch.nn.functional.cross_entropy(logits, task.test.labels)
    assert score.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert (score.cost, score.rows) == (1.0, 64)


def test_hard_and_cut_score_the_same(elastic, task):
    for budget in (0.25, 0.5):
        hard, smaller = (evaluate(elastic, task.test, budget, form) for form in ("hard", "cut"))
        assert hard.accuracy == smaller.accuracy
        assert hard.loss == pytest.approx(smaller.loss, rel=1e-5)
        assert hard.cost == smaller.cost == budget


def test_a_sweep_has_19_budgets_and_a_monotone_cost(elastic, task):
    points = sweep(elastic, task.test)
    assert [p.budget for p in points if p.form == "soft"] == list(SWEEP)
    assert len(SWEEP) == 19
    assert (SWEEP[0], SWEEP[-1]) == (0.1, 1.0)
    assert is_monotone(points)


def test_a_cost_that_falls_is_not_monotone():
    points = [Point(b, "soft", Outcome(1.0, 0.0, c, 1)) for b, c in ((0.1, 0.2), (0.2, 0.1))]
    assert not is_monotone(points)


def test_only_an_elastic_model_has_budgets(encoder, elastic, task):
    with pytest.raises(ValueError, match="only an elastic model"):
        evaluate(encoder, task.test, 0.5)
    with pytest.raises(ValueError, match="a form is one of"):
        evaluate(elastic, task.test, 0.5, "softly")


def test_loss_increase_is_that_of_each_unit_switched_off(elastic, task):
    scores = scoring.loss_increase(elastic, task.validation).scores
    whole = evaluate(elastic.plain(), task.validation).loss
    without = Allocation.of(elastic.units, [p for p in range(len(elastic.units)) if p != 3])
    alone = evaluate(cut(elastic.plain(), without), task.validation).loss
    assert float(scores[3]) == pytest.approx(alone - whole, abs=1e-5)
    assert scores.shape == (8,)


@pytest.mark.parametrize("score", [scoring.loss_increase, scoring.squared_gradient])
def test_long_work_tells_how_far_it_is(score, elastic, task):
    told = []
    score(elastic, task.validation, lambda done, of: told.append((done, of)))
    rows = len(task.validation)
    assert len(told) > 1 and told[-1] == (rows, rows) and told == sorted(told)
    told.clear()
    sweep(elastic, task.test, (0.5, 1.0), progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_random_scores_depend_on_the_seed_alone(elastic):
    one, same, other = (scoring.random(elastic.units, seed).scores for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("keep", [range(16), [0, 3, 5, 6, 9, 12, 13], [4, 5, 6, 7]])
def test_macs_agree_with_the_flop_counter(keep):
    model = Encoder(EncoderConfig(20, 24, 3, layers=4, heads=4, hidden=32, feedforward=64))
    model = cut(model, Allocation.of(Elastic(model, length=24).units, keep)).eval()
    model.requires_grad_(False)
    ids = torch.randint(0, 20, (3, 24))
    # The counter knows matrix products, not every fused attention kernel.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(ids)
    assert counter.get_total_flops() == 2 * 3 * count_macs(model, 24)


def test_half_the_heads_of_a_bert_mini_shape_are_what_the_paper_says():
    shape = {"layers": 4, "heads": 4, "hidden": 256, "feedforward": 1024, "classes": 1}
    model = Encoder(EncoderConfig(4, 128, **shape))
    half = Allocation.of(Elastic(model).units, range(0, 16, 2))
    smaller = cut(model, half)
    assert count_parameters(model) - count_parameters(smaller) == 525_824
    head = model.config.hidden  # the classifier's MACs, which are no layer's
    layers, kept = count_macs(model, 128) - head, count_macs(smaller, 128) - head
    assert 1 - kept / layers == pytest.approx(0.192, abs=5e-4)
    assert layers / kept == pytest.approx(1.238, abs=5e-4)


def test_arms_take_turns_and_the_order_turns_round():
    calls = []
    arms = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    results = measure(arms, repeats=6, warmup=2)
    assert len(calls) == 24
    assert [sorted(calls[i : i + 3]) for i in range(0, 24, 3)] == [["a", "b", "c"]] * 8
    assert calls[:3] == calls[3:6][::-1]
    assert [r.arm for r in results] == ["a", "b", "c"]
    assert results[0].speedup == 1.0


def test_measuring_uses_the_threads_it_says_and_gives_them_back():
    seen = []
    before = torch.get_num_threads()
    measure({"a": lambda: seen.append(torch.get_num_threads())}, repeats=6, threads=2)
    assert set(seen) == {2}
    assert torch.get_num_threads() == before


def test_the_interval_holds_the_median_about_as_often_as_it_says():
    generator = torch.Generator().manual_seed(1)
    hits = 0
    for _ in range(400):
        values = torch.randn(21, generator=generator).tolist()
        low, high = median_interval(values)
        assert low <= statistics.median(values) <= high
        hits += low <= 0.0 <= high
    assert hits / 400 > 0.93


def test_the_interval_is_the_one_of_the_sign_test():
    """n = 41: the 14th value from either end, coverage 0.956 (any table of order statistics)."""
    assert median_interval([float(n) for n in range(1, 42)]) == (14.0, 28.0)


def test_latency_records_say_how_they_were_measured(elastic, task):
    inputs, _ = task.test.batch(torch.arange(8))
    found = time_arms(elastic_arms(elastic, (0.5,)), [inputs], repeats=6)
    assert [(r["form"], r["budget"]) for r in found] == [
        ("dense", 1.0),
        ("soft", 0.5),
        ("hard", 0.5),
        ("skip", 0.5),
        ("cut", 0.5),
    ]
    for record in found:
        assert (record["batch"], record["length"], record["threads"]) == (8, 12, 1)
    assert found[-1]["bound"] > 1.0 == found[1]["bound"]


@pytest.mark.parametrize("numbers", [{"repeats": 4}, {"threads": 0}])
def test_measurements_that_mean_nothing_are_refused(numbers):
    with pytest.raises(ValueError, match="at least"):
        measure({"a": lambda: None}, **numbers)


def test_calls_of_an_arm_take_turns_with_those_of_the_others():
    order = []
    arms = {
        name: [lambda name=name, n=n: order.append((n, name)) for n in range(3)] for name in "ab"
    }
    found = measure(arms, repeats=5, warmup=0)
    assert [n for n, _ in order[:6]] == [0, 0, 1, 1, 2, 2]
    assert sorted(order) == sorted((n, name) for n in range(3) for name in "ab" for _ in range(5))
    assert {name for _, name in order[::2]} == {"a", "b"}  # neither always goes first
    assert [latency.repeats for latency in found] == [5, 5]
    with pytest.raises(ValueError, match="as many calls"):
        measure({"a": [lambda: None], "b": [lambda: None] * 2}, repeats=5)


def test_work_that_goes_on_after_a_call_is_waited_for():
    """A device that takes work and returns: only waiting tells how long it takes."""
    under_way, seen = [], []

    def wait():
        seen.append(len(under_way))
        under_way.clear()

    measure({"a": lambda: under_way.append("work")}, repeats=5, warmup=1, wait=wait)
    assert seen == [0, 1] * 6


def test_macs_of_batches_are_averaged_over_their_rows(elastic, task):
    wide, _ = task.test.batch(torch.arange(6))
    narrow = {"input_ids": wide["input_ids"][:2, :5]}
    plain = elastic.plain()
    dense, *_, smaller = time_arms(elastic_arms(elastic, (0.5,)), [wide, narrow], repeats=5)
    assert dense["macs"] == (6 * count_macs(plain, 12) + 2 * count_macs(plain, 5)) // 8
    assert (smaller["rows"], smaller["batch"], smaller["length"]) == (8, 6, 12)
    assert smaller["tokens"] == round((6 * 12 + 2 * 5) / 8, 1)


def test_rankings_are_compared_by_order_alone():
    assert rank_agreement([0.1, 0.2, 0.9], [1.0, 5.0, 6.0]) == pytest.approx(1.0)
    assert rank_agreement([0.1, 0.2, 0.9], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert math.isnan(rank_agreement([0.5, 0.5, 0.5], [3.0, 2.0, 1.0]))


def test_retention_is_the_share_of_the_low_budgets_units_that_stay():
    units = Units.grid(1, 4)
    low, high = Allocation.of(units, [0, 1]), Allocation.of(units, [1, 2, 3])
    assert retention(low, high) == 0.5
    assert retention(low, Allocation.everything(units)) == 1.0
