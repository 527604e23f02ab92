from __future__ import annotations

import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from architectures import from_transformers
from shortened import shortened
from shortened import texts as shortened_texts
from texts import folder
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
)
from witnesses import Clock, ToldApart, watch_rows

from apportion.data.task import Split
from apportion.data.text import Text
from apportion.elastic import scoring
from apportion.elastic.elastic import Elastic
from apportion.elastic.evaluation import (
    SWEEP,
    Outcome,
    Point,
    evaluate,
    is_monotone,
    rank_agreement,
    retention,
    sweep,
)
from apportion.method.units import Allocation, Units
from apportion.models.compute import count_macs, count_parameters
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.models.surgery import cut
from apportion.serving.bench.timing import (
    FUSED,
    GIVEN,
    Timed,
    elastic_arms,
    measure,
    median_interval,
    time_arms,
)
from apportion.study import measuring
from apportion.study.experiment import parse_experiment
from apportion.study.measuring import time_stage
from apportion.study.protocols import Timing
from apportion.study.stages import ScoredStage


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


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_is_without_dropout_and_leaves_the_mode_as_it_was(task, training):
    shape = {"layers": 2, "heads": 4, "hidden": 16, "feedforward": 64, "dropout": 0.5}
    model = Encoder(EncoderConfig(task.vocabulary, task.length, **shape)).train(training)
    first = evaluate(model, task.test)
    assert model.training is training
    assert evaluate(model, task.test) == first


def test_hard_and_cut_score_the_same(elastic, task):
    for budget in (0.25, 0.5):
        hard, smaller = (
            evaluate(elastic, task.test, budget=budget, form=form) for form in ("hard", "cut")
        )
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
    other = [Point(p.budget, "hard", Outcome(1.0, 0.0, 2 * p.budget, 1)) for p in points]
    assert not is_monotone([*other, *points])
    assert is_monotone(other)
    # Each form by itself: a hard mask may cost less than soft gates at a smaller budget.
    assert is_monotone([*other, Point(0.05, "soft", Outcome(1.0, 0.0, 0.9, 1))])


def test_only_an_elastic_model_has_budgets(encoder, elastic, task):
    with pytest.raises(ValueError, match="only an elastic model"):
        evaluate(encoder, task.test, budget=0.5)
    with pytest.raises(ValueError, match="a form is one of"):
        evaluate(elastic, task.test, budget=0.5, form="softly")


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
    sweep(elastic, task.test, budgets=(0.5, 1.0), progress=lambda done, of: told.append((done, of)))
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


def test_macs_of_embeddings_that_are_projected_are_those_of_each_token():
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "vocab_size": 20}
    shape |= {"embedding_size": 16, "intermediate_size": 64, "max_position_embeddings": 16}
    config = AutoConfig.for_model("electra", **shape)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
    model.eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(0, 20, (3, 9)))
    assert counter.get_total_flops() == 2 * 3 * count_macs(model, 9)


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


def test_warm_up_calls_are_made_and_do_not_count(monkeypatch):
    """By a clock of our own: the first calls of all are slow, then one arm is twice as fast."""
    clock, calls = Clock(monkeypatch), {"dense": 0, "half": 0}

    def arm(name, seconds):
        def call():
            calls[name] += 1
            clock.spend(100.0 if calls[name] <= 2 else seconds)

        return call

    dense, half = measure({"dense": arm("dense", 0.8), "half": arm("half", 0.4)}, 6, warmup=2)
    assert calls == {"dense": 8, "half": 8}
    assert (dense.median_ms, half.median_ms) == (pytest.approx(800), pytest.approx(400))
    assert (dense.speedup, half.speedup) == (1.0, pytest.approx(2.0))
    assert (half.low, half.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_a_speed_up_is_the_median_of_paired_ratios(monkeypatch):
    """A machine that slows down slows both arms: the ratio of a repeat stays what it is."""
    clock = Clock(monkeypatch)
    seconds = {"dense": [1, 2, 3, 40, 500], "half": [1, 1, 2, 10, 100]}  # 1, 2, 1.5, 4, 5

    def arm(name):
        left = iter(seconds[name])
        return lambda: clock.spend(next(left))

    _, half = measure({name: arm(name) for name in seconds}, repeats=5, warmup=0)
    assert half.speedup == pytest.approx(2.0)  # that of the medians would be 1.5
    assert (half.low, half.high) == (pytest.approx(1.0), pytest.approx(5.0))


class Slow(torch.nn.Module):
    """A model that takes a time of our own choice."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.spend = lambda: clock.spend(seconds)

    def forward(self, input_ids, budget=None):
        assert not self.training
        self.spend()


def test_records_say_which_arm_was_how_fast(elastic, task, monkeypatch):
    """Above 1 is faster than the dense model, and the bound is that of multiply-accumulates."""
    clock = Clock(monkeypatch)
    whole, half = elastic.plain(), elastic.cut(0.5)
    arms = {
        ("dense", 1.0): Timed(Slow(clock, 6.0), whole),
        ("soft", 0.5): Timed(Slow(clock, 8.0), whole, {"budget": 0.5}),
        ("cut", 0.5): Timed(Slow(clock, 2.0), half),
    }
    inputs, _ = task.test.batch(torch.arange(4))
    dense, soft, cut_model = time_arms(arms, [inputs, inputs], repeats=5, warmup=1)
    assert [r["median_ms"] for r in (dense, soft, cut_model)] == [12_000, 16_000, 4_000]
    assert [r["speedup"] for r in (dense, soft, cut_model)] == [1.0, 0.75, 3.0]
    assert (dense["macs"], soft["macs"]) == (count_macs(whole, 12),) * 2
    assert cut_model["macs"] == count_macs(half, 12) < dense["macs"]
    assert cut_model["bound"] == round(dense["macs"] / cut_model["macs"], 4)
    assert cut_model["removed"]["head_parameters"] == 0.5 and "removed" not in soft


SHAPE = {"layers": 2, "heads": 4, "hidden": 16, "feedforward": 32}


def timed_stage(model, **timing):
    """A stage with random weights and scores, so that nothing has to be trained."""
    numbers = {"seed": 3, "budgets": (0.25, 0.5), "score": "random", "latency": True}
    timing = Timing(**{"batch": 4, "repeats": 5, "forms": ("soft", "cut"), **timing})
    return ScoredStage(method="scored", task=ToldApart(), model=model, timing=timing, **numbers)


def test_a_stage_is_timed_after_warming_up_on_the_batch_that_it_says(tmp_path, monkeypatch):
    calls = watch_rows(monkeypatch)
    found = time_stage(timed_stage(SHAPE), tmp_path)
    assert [(r["form"], r["budget"]) for r in found if r["kind"] == "latency"] == [
        ("dense", 1.0),
        ("soft", 0.25),
        ("cut", 0.25),
        ("soft", 0.5),
        ("cut", 0.5),
    ]
    assert len(calls) == 5 * (5 + 3)  # arms, repeats, and three times to warm up
    assert {call.rows for call in calls} == {4}


def test_a_cut_model_of_transformers_is_timed_as_it_reloads(tmp_path, monkeypatch):
    """As people would run it: in memory of its own, and of the class that a folder loads as."""
    seen = {}

    def look(arms, batches, **_):
        seen.update(arms=arms, inputs=batches[0])
        return []

    monkeypatch.setattr(measuring, "time_arms", look)
    time_stage(timed_stage({"architecture": "bert", **SHAPE}), tmp_path)
    arms, inputs = seen["arms"], seen["inputs"]

    def memory(model):
        return {value.untyped_storage().data_ptr() for value in model.state_dict().values()}

    whole = arms["dense", 1.0].call
    soft = arms["soft", 0.5].call
    for budget in (0.25, 0.5):
        smaller = arms["cut", budget].call
        assert not memory(smaller) & memory(whole), "what was loaded shares nothing"
        with torch.no_grad():
            expected = soft(**inputs, budget=budget, form="hard").logits
            assert torch.allclose(smaller.eval()(**inputs).logits, expected, atol=1e-5)
        assert count_parameters(smaller) < count_parameters(whole)


def test_texts_are_timed_by_their_first_tokens(tmp_path, monkeypatch):
    """Short rows are the beginnings of the padded ones; grouped ones lose nothing but padding."""
    seen = []

    def look(_arms, batches, *, warmup, **_):
        seen.append((warmup, batches))
        return []

    monkeypatch.setattr(measuring, "time_arms", look)
    spec = Text(str(folder(tmp_path / "texts")), length=20, train=60, validation=24, test=15)
    stage = timed_stage(SHAPE, single=True, short=4, rows=10)
    time_stage(replace(stage, task=spec), tmp_path / "runs")
    rows = spec.build().test.inputs["input_ids"][:10]
    assert all(warmup >= 1 for warmup, _ in seen)
    padded, grouped, single, short = ([b["input_ids"] for b in batches] for _, batches in seen)
    assert torch.equal(torch.cat(padded), rows) and [len(b) for b in padded] == [4, 4, 2]
    assert torch.equal(torch.cat(single), rows) and {len(b) for b in single} == {1}
    assert torch.equal(torch.cat(short), rows[:, :4])
    wide = [torch.nn.functional.pad(b, (0, 20 - b.shape[1])) for b in grouped]
    assert sorted(torch.cat(wide).tolist()) == sorted(rows.tolist())
    assert max(b.shape[1] for b in grouped[:1]) < 20


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


STAGE = """
name = "small"
[task]
kind = "marked"
length = 12
distractors = 2
train = 8
validation = 8
test = 8
[model]
layers = 2
heads = 4
hidden = 16
feedforward = 32
[seeds]
data = [1]
optimisation = [7]
[timing]
[[stage]]
method = "budgeted"
recipe = "budgeted"
latency = true
"""


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("", (41, 3)), ("warmup = 10\nrepeats = 30", (30, 10)), ("warmup = 0", (41, 0))],
)
def test_a_study_says_how_often_its_models_warm_up(monkeypatch, tmp_path, asked, expected):
    study = parse_experiment(STAGE.replace("[timing]", f"[timing]\n{asked}"))
    seen = []
    monkeypatch.setattr(measuring, "_arms", lambda *_: {})
    monkeypatch.setattr(measuring, "produce", lambda *_, **__: SimpleNamespace(model=None))
    monkeypatch.setattr(measuring, "time_arms", lambda *_, **how: seen.append(how) or [])
    measuring.time_stage(study.stages[0], tmp_path)
    assert (seen[0]["repeats"], seen[0]["warmup"]) == expected
    assert study.stages[0].key == parse_experiment(STAGE).stages[0].key


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


def test_a_speed_is_a_median_of_ratios_and_a_ratio_of_medians(monkeypatch):
    """Five calls of two arms, as a clock with known steps has them."""
    taken = {"slow": [4.0, 2.0, 9.0, 6.0, 5.0], "fast": [1.0, 2.0, 3.0, 3.0, 5.0]}
    now = [0.0]
    left = {name: iter(times) for name, times in taken.items()}
    monkeypatch.setattr("apportion.serving.bench.timing.time.perf_counter", lambda: now[0])

    def arm(name):
        def call():
            now[0] += next(left[name]) / 1000.0

        return call

    slow, fast = measure({name: arm(name) for name in taken}, repeats=5, warmup=0)
    assert (slow.speedup, slow.of_medians) == (1.0, 1.0)
    assert fast.speedup == pytest.approx(2.0)  # of 4, 1, 3, 2, 1
    assert fast.of_medians == pytest.approx(5 / 3)
    assert (fast.low, fast.high) == pytest.approx((1.0, 4.0))


def bert() -> Elastic:
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
    )
    return Elastic(BertForSequenceClassification(config).eval(), length=8)


def test_views_are_timed_beside_a_dense_model_with_the_same_fused_sums():
    model = bert()
    arms = elastic_arms(model, [0.5], forms=("fused", "skip", "cut"))
    assert list(arms) == [("dense", 1.0), FUSED, ("skip", 0.5), ("cut", 0.5)]
    inputs = {"input_ids": torch.arange(16).reshape(2, 8)}
    plain, fused = arms["dense", 1.0].call, arms[FUSED].call
    kinds = [type(part).__name__ for part in fused.modules()]
    assert kinds.count("_Sum") == 4  # two sums in each layer
    assert "_Sum" not in [type(part).__name__ for part in plain.modules()]
    with torch.no_grad():
        ours, theirs = plain(**inputs).logits, fused(**inputs).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    places = {p.data_ptr() for p in plain.parameters()}
    assert {p.data_ptr() for p in fused.parameters()} <= places  # no memory of its own
    found = {r["form"]: r for r in time_arms(arms, [inputs], repeats=5)}
    assert found["fused"]["bound"] == 1.0 and found["fused"]["budget"] == 1.0
    for form in ("skip", "cut"):
        beside = found[form]["over_fused"]
        ratio = found["fused"]["median_ms"] / found[form]["median_ms"]
        assert beside["of_medians"] == pytest.approx(ratio, rel=0.05)  # of rounded times
        assert beside["low"] <= beside["speedup"] <= beside["high"]
    assert "over_fused" not in found["dense"] and "over_fused" not in found["fused"]


def test_the_model_as_it_was_given_computes_all_of_its_last_layer():
    model = Elastic(bert().plain(), length=8, first_token=True).nested().eval()
    arms = elastic_arms(model, [0.5], forms=("given", "skip"))
    assert list(arms) == [("dense", 1.0), GIVEN, ("skip", 0.5)]
    inputs = {"input_ids": torch.arange(16).reshape(2, 8)}
    with torch.no_grad():
        short, given = (arms[arm].call(**inputs).logits for arm in (("dense", 1.0), GIVEN))
    torch.testing.assert_close(short, given)
    dense, given, _ = time_arms(arms, [inputs], repeats=5)
    assert given["macs"] > dense["macs"] and given["bound"] < 1.0


def test_where_nothing_is_fused_there_is_no_such_arm(elastic):
    arms = elastic_arms(elastic, [0.5])
    assert [form for form, _ in arms] == ["dense", "soft", "hard", "skip", "cut"]


def test_records_of_gates_keep_the_width_that_a_budget_buys():
    """Where budgets buy tokens, too, fewer units go than by the budget alone."""
    model = shortened(from_transformers("bert", "sdpa"))
    names = {"stage": "a", "method": "both", "data_seed": 0, "seed": 0, "only": None}
    stage = SimpleNamespace(only=None, swept_at=(), budgets=(0.25, 0.5), names=names)
    task = SimpleNamespace(test=Split(shortened_texts(), torch.tensor([0, 1, 2, 0])))
    found = measuring._measure_gates(stage, model, task, lambda *_: None)
    kept = {record.budget: record.kept for record in found if record.kind == "gates"}
    for budget in (0.25, 0.5, 1.0):
        assert kept[budget] == model.allocation(budget).to_dict()
