"""Who sees which rows, at which gates, in which mode: what no result alone would give away."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import TINY
from torch.optim.optimizer import register_optimizer_step_pre_hook
from witnesses import ToldApart, watch_gates, watch_rows

from apportion.data.task import Split, Task
from apportion.data.text import Text
from apportion.elastic.checkpoint import weights_digest
from apportion.elastic.elastic import Elastic, logits_of
from apportion.elastic.evaluation import evaluate
from apportion.elastic.scoring import SOURCES, Scored
from apportion.method.allocation import allocate
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.serving.bench.timing import elastic_arms
from apportion.serving.runtime.prediction import ENCODING
from apportion.serving.runtime.skipping import Skipping
from apportion.study.baselines import tfidf_logistic
from apportion.study.driver.local_driver import _is_ready, _startable, unfinished
from apportion.study.experiment import parse_experiment
from apportion.study.measuring import run_stage, time_stage
from apportion.study.production import produce
from apportion.study.protocols import Timing
from apportion.study.stages import ScoredStage, Stage, TrainedStage
from apportion.training.loop import fit
from apportion.training.recipes import ADAPT, BUDGETED, DENSE, NESTED, RECOVER, STATIC, recipe
from apportion.training.schedule import (
    draw_budgets,
    learning_rate_share,
    noise_seed,
    parameter_groups,
    row_order,
)

SPEC = ToldApart()
SHORT = {"epochs": 2, "batch_size": 16}
OBJECTIVES = [DENSE, BUDGETED, ADAPT, NESTED]
named = pytest.mark.parametrize("chosen", OBJECTIVES, ids=lambda r: r.name)


@pytest.fixture(scope="module")
def task() -> Task:
    return SPEC.build()


def plain(task, seed=0, **shape):
    torch.manual_seed(seed)
    return Encoder(EncoderConfig(task.vocabulary, task.length, **{**TINY, **shape})).eval()


def elastic_of(task, seed=0, kinds=("heads",), **shape):
    """An elastic model whose gates all differ, and prefer the first layer to the second."""
    made = Elastic(plain(task, seed, **shape), kinds, length=task.length, block=16).eval()
    with torch.no_grad():
        layers = torch.tensor([float(unit.layer) for unit in made.units])
        made.gates.a.copy_(torch.rand(len(made.units)) - 2.0 * layers)
        made.gates.s.copy_(torch.rand(len(made.units)))
    return made


def start_of(chosen, task, **shape):
    """What a recipe starts from."""
    if chosen.objective == "dense":
        return plain(task, **shape)
    if chosen.objective == "nested":
        return elastic_of(task, kinds=("heads", "feedforward"), **shape).nested()
    return elastic_of(task, **shape)


def stage(method="dense", recipe=DENSE, **facts) -> Stage:
    shape = {"method": method, "task": SPEC, "model": TINY, "seed": 3, "budgets": (0.25, 0.5)}
    if recipe is None:
        return ScoredStage(**{**shape, **facts})
    return TrainedStage(recipe=recipe.with_changes(epochs=1, batch_size=16), **{**shape, **facts})


# Rows.


@named
@pytest.mark.parametrize("taught", [False, True], ids=["alone", "taught"])
def test_training_rows_are_learned_and_validation_rows_choose(task, monkeypatch, chosen, taught):
    # A teacher that comes right out of its own training is put into evaluation mode.
    start, teacher = start_of(chosen, task), plain(task, seed=1).train() if taught else None
    calls = watch_rows(monkeypatch)
    fit(start, task, recipe=chosen.with_changes(**SHORT), seed=3, teacher=teacher)
    learning = {("train", True), *([("train", False)] if taught else [])}
    assert {(call.split, call.training) for call in calls} == learning | {("validation", False)}
    # Each row is in one step of each epoch, at each of the step's budgets.
    each = len(draw_budgets(chosen, 3, 0)) * SHORT["epochs"]
    assert sum(call.rows for call in calls if call.training) == each * len(task.train)


def test_the_best_epoch_is_the_one_that_validation_rows_choose(task):
    """Validation rows that unlearn what training rows teach: the last epoch is not the best."""
    turned = Split(task.train.inputs, 1 - task.train.labels)
    how = DENSE.with_changes(epochs=5, batch_size=8, lr=1e-2)
    fitted = fit(plain(task), replace(task, validation=turned), recipe=how, seed=3)
    assert fitted.best == max(fitted.history, key=lambda e: (e.accuracy, -e.objective))
    assert fitted.best != fitted.history[-1]
    outcome = evaluate(fitted.model, turned)
    assert outcome.accuracy == pytest.approx(fitted.best.accuracy)
    assert outcome.loss == pytest.approx(fitted.best.objective, rel=1e-5)


@pytest.mark.parametrize(
    ("score", "rows"),
    [
        ("loss-increase", {"validation"}),
        ("squared-gradient", {"train"}),
        ("uniform", {"train"}),
        ("random", set()),
        ("learned", set()),
    ],
)
def test_no_score_looks_at_test_rows(tmp_path, monkeypatch, score, rows):
    dense = stage()
    teacher = stage("budgeted", BUDGETED, parent=dense) if score == "learned" else None
    scored = stage("scored", None, score=score, parent=dense, teacher=teacher)
    for source in (dense, *([teacher] if teacher else [])):
        produce(source, tmp_path)
    calls = watch_rows(monkeypatch)
    produce(scored, tmp_path)
    assert {call.split for call in calls} == rows
    assert not any(call.training for call in calls)


def test_repair_fits_to_training_rows_and_validation_rows_say_how_far_it_goes(
    tmp_path, monkeypatch
):
    dense = stage()
    produce(dense, tmp_path)
    facts = {"score": "random", "parent": dense, "nested": True, "kinds": ("heads", "feedforward")}
    for made_by, rows in (({}, {"train", "validation"}), ({"repair": 1}, {"train"})):
        calls = watch_rows(monkeypatch)
        produce(stage("repaired", None, repair=True, made_by=made_by, **facts), tmp_path)
        assert {call.split for call in calls} == rows
        assert not any(call.training for call in calls)


def test_what_is_measured_and_timed_are_test_rows(tmp_path, monkeypatch):
    dense = stage()
    scored = stage("scored", None, score="squared-gradient", parent=dense)
    stages = [
        dense,
        scored,
        stage("budgeted", BUDGETED, parent=dense, latency=True, sweep=False),
        stage("specialist", RECOVER, parent=scored, only=0.5),
    ]
    for made in stages:
        produce(made, tmp_path)
    calls = watch_rows(monkeypatch)
    for made in stages:
        points = [r for r in run_stage(made, tmp_path) if r["kind"] == "point"]
        assert points and {(p["split"], p["rows"]) for p in points} == {("test", SPEC.test)}
    assert {(call.split, call.training) for call in calls} == {("test", False)}
    calls.clear()
    time_stage(replace(stages[2], timing=Timing(batch=4, repeats=5)), tmp_path)
    assert {(call.split, call.training, call.rows) for call in calls} == {("test", False, 4)}


def test_the_baseline_of_words_is_chosen_by_validation_rows():
    """Only pairs of words tell the classes of validation apart; test rows would choose words."""

    def split(*counts):
        texts = [text for text, _, count in counts for _ in range(count)]
        labels = [label for _, label, count in counts for _ in range(count)]
        return Split({}, torch.tensor(labels), tuple(texts))

    train = split(("red blue", 0, 30), ("blue red", 1, 20))
    validation = split(("red blue", 0, 5), ("blue red", 1, 5))
    test = split(("blue red", 0, 10))
    task = Task("words", train, validation, test, ("a", "b"), 2, 2, {})
    outcome, chosen = tfidf_logistic(task)
    assert chosen["ngrams"] == [1, 2]
    assert (outcome.accuracy, outcome.rows) == (0.0, 10)  # words alone would have all of them


# Gates.


def in_mode(seen, training):
    return [z for mode, z in seen if mode is training]


def assert_gates(seen, expected):
    assert len(seen) == len(expected)
    for number, (one, other) in enumerate(zip(seen, expected, strict=True)):
        assert torch.allclose(one, other, atol=1e-4), number


@pytest.mark.parametrize("chosen", [BUDGETED, ADAPT], ids=lambda r: r.name)
def test_a_student_is_asked_as_its_recipe_says_and_a_teacher_at_its_own_gates(task, chosen):
    """Adaptation: hard masks for the student, z(B) for the teacher, the same B for both."""
    student, teacher = elastic_of(task), elastic_of(task, seed=1)
    floor = int(chosen is ADAPT)
    how = chosen.with_changes(
        **SHORT, gate_lr=0.0, floor=floor, budgets=(0.3, 1.0), select_at=(0.3, 0.5)
    )
    of_student, of_teacher = watch_gates(student), watch_gates(teacher.train())
    fit(student, task, recipe=how, seed=3, teacher=teacher)

    def asked(model, budget, hard):
        z = model.allocation(budget, floor).mask() if hard else model.gates(budget).detach()
        return z

    hard = chosen is ADAPT
    drawn = [draw_budgets(how, 3, step)[0] for step in range(6)]
    assert_gates(in_mode(of_student, True), [asked(student, b, hard) for b in drawn])
    assert_gates(in_mode(of_teacher, False), [asked(teacher, b, False) for b in drawn])
    assert in_mode(of_teacher, True) == []  # no dropout in what it teaches
    chosen_at = [asked(student, b, hard) for b in how.select_at] * how.epochs
    assert_gates(in_mode(of_student, False), chosen_at)
    # The floor is one that these gates would not keep by themselves.
    assert not student.allocation(0.3).indices(1, "heads")


def test_in_nested_training_a_teacher_with_gates_is_asked_at_every_budget(task):
    student, teacher = start_of(NESTED, task), elastic_of(task, seed=1).train()
    seen = watch_gates(teacher)
    how = NESTED.with_changes(epochs=1, batch_size=16, samples=1)
    fit(student, task, recipe=how, seed=3, teacher=teacher)
    drawn = [budget for step in range(3) for budget in draw_budgets(how, 3, step)]
    assert len(drawn) == 9 and not any(mode for mode, _ in seen)
    assert_gates([z for _, z in seen], [teacher.gates(b).detach() for b in drawn])


def test_nested_training_computes_what_each_budget_keeps_and_its_floor(task):
    student = start_of(NESTED, task)
    widths = []
    for number, layer in enumerate(student.model.layers):

        def given(module, args, number=number):
            if module.training:
                widths.append((number, args[0].shape[-1] // 4))

        layer.attention.output.register_forward_pre_hook(given)
    how = NESTED.with_changes(epochs=1, batch_size=48, samples=0, floor=1, budgets=(0.3, 1.0))
    fit(student, task, recipe=how, seed=3)
    kept = [student.allocation(budget, floor=1) for budget in (1.0, 0.3)]
    assert widths == [(n, len(k.indices(n, "heads"))) for k in kept for n in (0, 1)]
    assert len(student.allocation(0.3).indices(1, "heads")) == 0 < widths[-1][1]


def test_a_call_leaves_no_gates_behind(task):
    """Nor does one that fails: what is inside computes what it did before."""
    model = elastic_of(task)
    inputs, _ = task.test.batch(torch.arange(6))
    too_long = torch.zeros(1, task.length + 1, dtype=torch.long)
    with torch.no_grad():
        before = model.model(**inputs)
        assert not torch.allclose(model(**inputs, budget=0.3), before, atol=1e-3)
        assert torch.equal(model.model(**inputs), before)
        with pytest.raises(ValueError, match="more than this encoder's"):
            model(too_long, budget=0.3)
        assert torch.equal(model.model(**inputs), before)


# Losses.


def equation_5(model, budget, how):
    paid = model.cost(budget)
    return how.lam * paid + how.beta * torch.clamp(paid - budget, min=0.0) ** 2


def equation_6(logits, labels, taught, how):
    p, q = F.softmax(taught / how.T, -1), F.softmax(logits / how.T, -1)
    divergence = (p * (p / q).log()).sum(-1).mean()
    return (1 - how.alpha) * F.cross_entropy(logits, labels) + how.alpha * how.T**2 * divergence


@named
@pytest.mark.parametrize("taught", [None, "plain", "elastic"])
def test_the_first_step_minimises_what_the_equations_say(task, chosen, taught):
    """Eq. 5 where gates are soft and nowhere else; Eq. 6 wherever there is a teacher."""
    model = start_of(chosen, task)
    teacher = {None: None, "plain": plain(task, seed=1), "elastic": elastic_of(task, seed=1)}
    teacher = teacher[taught]
    how = chosen.with_changes(
        epochs=1, batch_size=16, lam=0.7, beta=5.0, alpha=0.3, T=3.0, budgets=(0.25, 0.4)
    )
    ticks = []
    fit(model, task, recipe=how, seed=3, teacher=teacher, progress=ticks.append)
    rows = row_order(3, 0, len(task.train), None, 16)[:16]
    inputs, labels = task.train.batch(rows)
    losses = []
    with torch.no_grad():
        for budget in draw_budgets(how, 3, 0):
            if chosen is DENSE:
                logits = model(**inputs)
            elif chosen is BUDGETED:
                logits = model(**inputs, z=model.gates(budget))
            else:
                logits = model(**inputs, z=model.allocation(budget).mask())
            loss = F.cross_entropy(logits, labels)
            if teacher is not None:
                open_by = {"z": teacher.gates(budget)} if taught == "elastic" else {}
                loss = equation_6(logits, labels, teacher(**inputs, **open_by), how)
            losses.append(loss + equation_5(model, budget, how) if chosen is BUDGETED else loss)
    assert ticks[0].loss == pytest.approx(float(torch.stack(losses).mean()), rel=1e-4)


def test_adaptation_does_not_pay_for_what_it_opens(task):
    """Its gates learn from the task and the teacher; Eq. 5 has no say any more."""
    model, teacher = elastic_of(task), elastic_of(task, seed=1)

    def adapted(lam):
        how = ADAPT.with_changes(**SHORT, lam=lam, beta=10 * lam, gate_lr=0.1)
        return fit(model, task, recipe=how, seed=3, teacher=teacher).model

    assert weights_digest(adapted(0.0)) == weights_digest(adapted(5.0))
    assert not torch.equal(adapted(0.0).gates.a, model.gates.a)


# Steps.


@named
def test_dropout_is_on_in_training_and_its_noise_is_new_in_each_step(task, monkeypatch, chosen):
    start = start_of(chosen, task, dropout=0.3)
    calls = watch_rows(monkeypatch)
    fit(start, task, recipe=chosen.with_changes(**SHORT), seed=3)
    seeds = [call.seed for call in calls if call.training]
    assert len(seeds) >= 6 and len(set(seeds)) == 6  # a step's budgets share theirs
    assert not any(call.training for call in calls if call.split == "validation")


def test_every_step_seed_and_process_has_noise_of_its_own():
    drawn = [noise_seed(*where) for where in ((1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 0))]
    assert len(set(drawn)) == 4
    assert noise_seed(1, 0, 0) == drawn[0]


@pytest.fixture
def steps():
    """The gradient's norm and the parameter groups of each step that an optimizer takes."""
    taken = []

    def look(optimizer, _args, _kwargs):
        groups = [
            (group["lr"], group["weight_decay"], [p.dim() for p in group["params"]])
            for group in optimizer.param_groups
        ]
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        taken.append((float(torch.stack([g.norm() for g in grads]).norm()), groups))

    hook = register_optimizer_step_pre_hook(look)
    yield taken
    hook.remove()


@named
def test_a_gradient_is_no_longer_than_the_recipe_allows(task, steps, chosen):
    start = start_of(chosen, task)
    fit(start, task, recipe=chosen.with_changes(**SHORT, clip=1e9), seed=3)
    assert min(norm for norm, _ in steps) > 1e-3
    steps.clear()
    fit(start, task, recipe=chosen.with_changes(**SHORT, clip=1e-3), seed=3)
    assert [norm for norm, _ in steps] == pytest.approx([1e-3] * 6, rel=1e-2)


@named
def test_matrices_decay_and_biases_norms_and_gates_do_not(task, steps, chosen):
    start = start_of(chosen, task)
    how = chosen.with_changes(**SHORT, weight_decay=0.2, lr=0.01, gate_lr=0.5)
    groups = parameter_groups(start, how)
    names = {id(parameter): name for name, parameter in start.named_parameters()}
    assert sorted(names) == sorted(id(p) for group in groups for p in group["params"])
    for group in groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            vector = name.endswith("bias") or "norm" in name or name.startswith("gates.")
            assert group["weight_decay"] == (0.0 if vector else 0.2), name
            assert group["lr"] == (0.5 if name.startswith("gates.") else 0.01), name
    fit(start, task, recipe=how, seed=3)
    for step, (_, taken) in enumerate(steps):
        share = learning_rate_share(how, step, 6)
        expected = [
            (pytest.approx(share * g["lr"]), g["weight_decay"], [p.dim() for p in g["params"]])
            for g in groups
        ]
        assert taken == expected


# Floors.


@pytest.fixture
def one_layer_wanted(monkeypatch):
    """Scores by which a small budget keeps nothing of the second layer."""

    def first_layer(model, *_):
        scores = [10.0 * (unit.layer == 0) - unit.index for unit in model.units]
        return Scored(torch.tensor(scores), {})

    monkeypatch.setitem(SOURCES, "random", first_layer)


def empty_layers(kept):
    return [name for name, of in kept.to_dict().items() if not of["heads"]]


def scored_stage(keep, **facts):
    return stage("scored", None, score="random", parent=stage(), keep=keep, **facts)


@pytest.mark.parametrize("keep", [0, 1])
def test_scores_are_measured_with_the_units_that_every_layer_keeps(
    tmp_path, one_layer_wanted, keep
):
    scored = scored_stage(keep)
    assert scored.floor == keep
    model = produce(scored, tmp_path).model
    assert bool(empty_layers(model.allocation(0.5, keep))) == (not keep)
    (point,) = [r for r in run_stage(scored, tmp_path) if r.get("budget") == 0.5]
    test = SPEC.build().test
    expected, other = (
        evaluate(model, test, budget=0.5, form="hard", floor=floor).loss
        for floor in (keep, 1 - keep)
    )
    assert point["loss"] == pytest.approx(expected, abs=1e-6) != pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_specialist_is_cut_with_the_floor_of_its_scores(tmp_path, one_layer_wanted, keep):
    scored = scored_stage(keep)
    recovered = produce(stage("recovered", RECOVER, parent=scored, only=0.5), tmp_path)
    assert bool(empty_layers(recovered.kept)) == (not keep)
    assert recovered.kept == produce(scored, tmp_path).model.allocation(0.5, keep)


@pytest.mark.parametrize("floor", [0, 1])
def test_gates_are_measured_with_the_floor_of_their_recipe(tmp_path, one_layer_wanted, floor):
    """Their points, and what a record says was kept."""
    budgeted = BUDGETED.with_changes(gate_lr=0.0, floor=floor, select_at=(0.5,), budgets=(0.3, 1.0))
    made = stage("gates", budgeted, parent=scored_stage(0), sweep=False, budgets=(0.5,))
    records = run_stage(made, tmp_path)
    model = produce(made, tmp_path).model
    (gates,) = [r for r in records if r["kind"] == "gates" and r["budget"] == 0.5]
    kept = model.allocation(0.5, floor)
    assert gates["kept"] == kept.to_dict() and bool(empty_layers(kept)) == (not floor)
    losses = {r["form"]: r["loss"] for r in records if r["kind"] == "point" and r["budget"] == 0.5}
    hard = evaluate(model, SPEC.build().test, allocation=kept, form="hard").loss
    assert losses["hard"] == pytest.approx(hard, abs=1e-6)
    assert losses["cut"] == pytest.approx(hard, abs=1e-6)


@pytest.mark.parametrize("floor", [0, 1])
def test_serving_and_timing_keep_the_floor_that_they_are_given(task, floor):
    model = elastic_of(task)
    kept = model.allocation(0.5, floor)
    assert bool(empty_layers(kept)) == (not floor)
    inputs, _ = task.test.batch(torch.arange(6))
    with torch.no_grad():
        expected = model(**inputs, allocation=kept)
        assert torch.allclose(Skipping(model, floor)(**inputs, budget=0.5), expected, atol=1e-5)
        arms = elastic_arms(model, (0.5,), floor)
        for form in ("hard", "skip", "cut"):
            arm = arms[form, 0.5]
            answer = logits_of(arm.call.eval()(**inputs, **arm.options))
            assert torch.allclose(answer, expected, atol=1e-5), form
        assert torch.allclose(arms["cut", 0.5].computes.eval()(**inputs), expected, atol=1e-5)
    other = model(**inputs, allocation=model.allocation(0.5, 1 - floor))
    assert not torch.allclose(other, expected, atol=1e-3)


# Costs.


def test_a_hard_form_costs_what_it_keeps_and_not_what_was_asked_for(task, tmp_path):
    model = elastic_of(task)  # two layers of four heads
    for budget, paid in ((0.3, 0.25), (0.4, 0.375), (0.05, 0.125)):
        for form in ("hard", "cut"):
            assert evaluate(model, task.test, budget=budget, form=form).cost == pytest.approx(paid)
    kept = allocate(torch.rand(8), model.units, budget=0.6)
    assert evaluate(model, task.test, allocation=kept, form="hard").cost == pytest.approx(0.625)
    soft = evaluate(model, task.test, budget=0.3, form="soft").cost
    assert soft == pytest.approx(float(model.gates(0.3).mean().detach()))
    scored = stage("scored", None, score="random", parent=stage(), budgets=(0.3,))
    (point,) = [r for r in run_stage(scored, tmp_path) if r["kind"] == "point"]
    assert (point["budget"], point["cost"]) == (0.3, 0.25)
    made = stage("cut", RECOVER, parent=scored, only=0.4)
    (point,) = [r for r in run_stage(made, tmp_path) if r["kind"] == "point"]
    assert (point["budget"], point["cost"]) == (0.4, 0.375)


# What a driver leaves to do.


def test_only_records_of_the_same_device_and_way_say_that_a_stage_is_timed():
    timed = stage("budgeted", BUDGETED, parent=stage(), latency=True, device="cpu")
    texts = replace(timed, task=Text("somebody/texts"), timing=Timing(single=True))

    def left(made, records):
        _, to_time = unfinished(SimpleNamespace(stages=[made]), records)
        return to_time == [made]

    def latencies(made, budgets=(0.25, 0.5), **facts):
        return [
            {"kind": "latency", "stage": made.key, "budget": budget, **facts} for budget in budgets
        ]

    assert not left(timed, latencies(timed))
    assert left(timed, latencies(timed, (0.25,)))
    assert left(timed, latencies(timed, device="cuda"))
    assert left(timed, latencies(replace(timed, seed=4)))
    of_ways = [
        record
        for way in ("padded", "grouped", "single")
        for record in latencies(texts, protocol=way)
    ]
    spoken = [{**record, "kind": "throughput", "encoding": ENCODING} for record in of_ways[:2]]
    assert not left(texts, of_ways + spoken)
    assert left(texts, of_ways[:-1] + spoken)
    assert left(texts, of_ways + spoken[:1])
    assert left(texts, of_ways + [{**record, "encoding": "another way"} for record in spoken])


def test_a_stage_waits_for_what_it_comes_from(tmp_path):
    """Its parent and teacher are made once, by their own stage or by the first that needs them."""
    dense, teacher = stage(), stage("teacher", DENSE, seed=4)
    taught = stage("taught", BUDGETED, parent=dense, teacher=teacher)
    other = stage("other", BUDGETED, parent=dense, seed=5)

    def ready(made, busy=(), todo=()):
        keys = {waiting.key: waiting for waiting in (*todo, *busy)}
        return _is_ready(made, tmp_path, {one.key for one in busy}, keys)

    assert ready(dense)
    assert not ready(taught, todo=[dense, teacher])
    assert not ready(taught, todo=[teacher])
    assert not ready(taught, busy=[teacher])
    assert ready(taught)  # nobody else will make them: it does so itself
    assert not ready(other, busy=[taught])  # which is making the dense one now
    produce(dense, tmp_path)
    assert ready(other, busy=[taught])
    assert not ready(taught, todo=[teacher])


def test_stages_that_need_the_same_lost_model_do_not_start_together(tmp_path):
    """The first makes it; the second would write the same folder."""
    dense = stage()
    first, second = stage("a", BUDGETED, parent=dense), stage("b", ADAPT, parent=dense)
    apart = stage("apart", DENSE, seed=4)
    waiting = [first, second, apart]

    def started(free=2, busy=()):
        keys = {made.key: made for made in waiting}
        busy = {made.key for made in busy}
        return _startable(waiting, tmp_path, busy=busy, todo=keys, free=free)

    assert started() == [first, apart]
    assert started(free=1) == [first] and started(free=0) == []
    assert started(busy=[first]) == [apart]
    produce(dense, tmp_path)
    assert started() == [first, second]


# Plans.

STUDY = """
name = "plan"
[task]
kind = "marked"
[model]
layers = 2
[seeds]
data = [1]
optimisation = [7]
[[stage]]
method = "dense"
recipe = "dense"
[[stage]]
method = "static"
from = "dense"
teacher = "dense"
recipe = "static"
each = [0.25, 0.5]
"""


def test_a_model_of_one_budget_is_trained_and_chosen_at_that_budget():
    made = parse_experiment(STUDY).stages_of("static")
    assert [s.only for s in made] == [0.25, 0.5]
    for one in made:
        assert one.recipe == recipe("static", budgets=(one.only, one.only), select_at=(one.only,))
        assert set(draw_budgets(one.recipe, 7, step)[0] for step in range(9)) == {one.only}
    assert STATIC.budgets == (0.25, 1.0)


def test_a_stage_is_taught_by_its_teacher(tmp_path, monkeypatch):
    """The rows of its training are also read by a model in evaluation mode."""
    dense = stage()
    other = stage("other", DENSE, seed=4)
    for source in (dense, other):
        produce(source, tmp_path)
    calls = watch_rows(monkeypatch)
    alone = produce(stage("alone", BUDGETED, parent=dense), tmp_path).model
    assert not any(call.split == "train" and not call.training for call in calls)
    taught = produce(stage("taught", BUDGETED, parent=dense, teacher=other), tmp_path).model
    assert sum(call.rows for call in calls if call.split == "train" and not call.training) == 48
    assert weights_digest(alone) != weights_digest(taught)
