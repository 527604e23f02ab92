"""A model knows how it is to be asked: its form, its floor and its smallest budget."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from apportion.elastic.checkpoint import GATES, MANIFEST, Checkpoint, load, save
from apportion.elastic.elastic import Elastic
from apportion.elastic.evaluation import evaluate, sweep
from apportion.method.units import Allocation, check_budget
from apportion.serving.bench.switching import time_switching
from apportion.serving.bench.timing import elastic_arms
from apportion.serving.runtime.skipping import Skipping
from apportion.training.loop import fit
from apportion.training.prefixes import Views
from apportion.training.recipes import ADAPT, BUDGETED, DENSE, NESTED, STATIC

ALL = ("heads", "feedforward")


@pytest.fixture
def elastic(encoder, task):
    elastic = Elastic(encoder, ALL, length=task.length, block=16).eval()
    with torch.no_grad():
        elastic.gates.a.normal_()
        elastic.gates.s.normal_()
    return elastic


@pytest.fixture
def ids(task):
    return task.test.batch(torch.arange(6))[0]["input_ids"]


def test_a_fresh_model_is_soft_and_has_neither_floor_nor_limit(elastic):
    assert (elastic.form, elastic.floor, elastic.lowest) == ("soft", 0, None)
    elastic.allocation(0.001)


def test_what_is_not_said_is_the_models_own(elastic, ids):
    for form in ("soft", "hard"):
        elastic.made_for(form, floor=1, lowest=0.3)
        with torch.no_grad():
            assert torch.equal(elastic(ids, budget=0.3), elastic(ids, budget=0.3, form=form))
            assert torch.equal(elastic.opening(0.3), elastic.opening(0.3, form, floor=1))
            assert elastic.cost(0.3) == elastic.cost(0.3, form, floor=1)
    assert elastic.allocation(0.3) == elastic.allocation(0.3, floor=1)
    assert elastic.allocation(0.3) != elastic.allocation(0.3, floor=0)
    with torch.no_grad():
        smaller, expected = elastic.cut(0.3).eval(), elastic.cut(0.3, floor=1).eval()
        assert torch.equal(smaller(ids), expected(ids))


def test_the_cost_of_hard_units_is_what_they_pay(elastic):
    elastic.made_for("hard", floor=1)
    assert float(elastic.cost(0.3)) == pytest.approx(elastic.allocation(0.3).cost)
    assert float(elastic.cost(0.3, "soft").detach()) != pytest.approx(elastic.allocation(0.3).cost)


def test_a_nested_model_answers_hard(elastic, ids):
    nested = elastic.made_for("soft", floor=1, lowest=0.5).nested()
    assert (nested.form, nested.floor, nested.lowest) == ("nested", 1, None)
    with torch.no_grad():
        kept = nested.allocation(0.4)
        assert torch.equal(nested(ids, budget=0.4), nested(ids, allocation=kept))
        assert float(nested.cost(0.4)) == pytest.approx(kept.cost)


def test_a_nested_model_is_never_half_open(elastic, task, ids):
    nested = elastic.nested()
    for asked in (
        lambda: nested(ids, budget=0.5, form="soft"),
        lambda: nested(ids, budget=0.5, form="straight-through"),
        lambda: nested.opening(0.5, "soft"),
        lambda: nested.cost(0.5, "soft"),
        lambda: evaluate(nested, task.test, budget=0.5, form="soft"),
        lambda: sweep(nested, task.test, budgets=(0.5,), forms=("soft",)),
        lambda: elastic_arms(nested, (0.5,), forms=("soft",)),
    ):
        with pytest.raises(ValueError, match=r"nested model .* hard"):
            asked()
    with pytest.raises(ValueError, match="one number"):
        nested(ids, budget=torch.full((6,), 0.5))


def test_a_form_that_a_model_does_not_have_is_refused(elastic):
    with pytest.raises(ValueError, match="`nested\\(\\)`"):
        elastic.made_for("nested")
    with pytest.raises(ValueError, match="nested"):
        elastic.nested().made_for("soft")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"form": "open"}, "soft, hard, nested"),
        ({"form": None}, "soft, hard, nested"),
        ({"form": ["soft"]}, "soft, hard, nested"),
        ({"floor": -1}, "floor"),
        ({"floor": 1.5}, "floor"),
        ({"floor": "1"}, "floor"),
        ({"floor": True}, "floor"),
        ({"floor": 5}, "more than the 4"),
        ({"lowest": 0.0}, "fraction"),
        ({"lowest": 7}, "fraction"),
        ({"lowest": "half"}, "number"),
        ({"floor": 4, "lowest": 0.5}, "smallest feasible budget"),
    ],
)
def test_nonsense_is_refused_and_leaves_the_model_as_it_was(elastic, said, says):
    with pytest.raises(ValueError, match=says):
        elastic.made_for(**{"form": "soft", **said})
    assert (elastic.form, elastic.floor, elastic.lowest) == ("soft", 0, None)


def test_a_budget_below_the_range_names_the_smallest_one_everywhere(elastic, task, ids):
    elastic.made_for("soft", lowest=0.25)
    nested = elastic.nested().made_for("nested", lowest=0.25)
    for model in (elastic, nested):
        for asked in (
            lambda model=model: model(ids, budget=0.2),
            lambda model=model: model.opening(0.2),
            lambda model=model: model.cost(0.2),
            lambda model=model: model.allocation(0.2),
            lambda model=model: model.cut(0.2),
            lambda model=model: Skipping(model).at(0.2),
            lambda model=model: Skipping(model)(ids, budget=0.2),
            lambda model=model: evaluate(model, task.test, budget=0.2),
            lambda model=model: sweep(model, task.test, budgets=(0.5, 0.2)),
            lambda model=model: elastic_arms(model, (0.2,)),
            lambda model=model: time_switching(model, (0.2,)),
        ):
            with pytest.raises(ValueError, match=r"budget 0\.2 .* smallest is 0\.25"):
                asked()
        assert model.allocation(0.25).count
    with pytest.raises(ValueError, match=r"smallest is 0\.25"):
        elastic(ids, budget=torch.tensor([0.5, 0.2, 1.0, 1.0, 1.0, 1.0]))


def test_every_way_keeps_the_same_units(elastic, task):
    for model in (
        elastic.made_for("soft", floor=1),
        elastic.nested().made_for("nested", floor=1),
    ):
        kept = model.allocation(0.3)
        assert all(kept.indices(layer, kind) for layer, kind in kept.units.spans)
        assert kept != model.allocation(0.3, floor=0)
        arms = elastic_arms(model, (0.3,))
        (point,) = [p for p in sweep(model, task.test, budgets=(0.3,)) if p.form != "soft"]
        assert point.outcome.cost == kept.cost
        assert evaluate(model, task.test, budget=0.3, form="cut").cost == kept.cost
        smaller = [
            model.cut(0.3),
            Skipping(model).at(0.3),
            arms["cut", 0.3].computes,
            arms["skip", 0.3].computes,
        ]
        expected = shapes(model.cut(0.3, floor=1))
        assert all(shapes(one) == expected for one in smaller)


def shapes(model):
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def test_a_sweep_asks_a_model_in_its_own_forms(elastic, task):
    forms = lambda model: {p.form for p in sweep(model, task.test, budgets=(0.5,))}  # noqa: E731
    assert forms(elastic) == {"soft", "hard"}
    assert forms(elastic.nested()) == {"cut"}
    arms = lambda model: {form for form, _ in elastic_arms(model, (0.5,))}  # noqa: E731
    assert arms(elastic) == {"dense", "soft", "hard", "skip", "cut"}
    assert arms(elastic.nested()) == {"dense", "skip", "cut"}


def test_an_arm_of_soft_gates_is_soft_whatever_the_models_form(elastic, ids):
    elastic.made_for("hard")
    arm = elastic_arms(elastic, (0.5,))["soft", 0.5]
    with torch.no_grad():
        assert torch.equal(arm.call(ids, **arm.options), elastic(ids, budget=0.5, form="soft"))


@pytest.mark.parametrize(
    ("recipe", "form", "lowest"),
    [
        (BUDGETED, "soft", 0.25),
        (STATIC.with_changes(budgets=(0.5, 0.5), select_at=(0.5,)), "soft", 0.5),
        (ADAPT.with_changes(floor=1, budgets=(0.3, 1.0), select_at=(0.4, 1.0)), "hard", 0.3),
        (NESTED.with_changes(budgets=(0.5, 1.0), floor=1, select_at=(0.3, 1.0)), "nested", 0.3),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_training_decides_how_a_model_is_asked(elastic, task, recipe, form, lowest):
    start = elastic.nested() if form == "nested" else elastic
    start.made_for(start.form, floor=0, lowest=1.0)  # what it was before does not matter
    made = fit(start, task, recipe=recipe.with_changes(epochs=1), seed=3).model
    assert (made.form, made.floor, made.lowest) == (form, recipe.floor, lowest)
    assert start.lowest == 1.0


@pytest.mark.parametrize("recipe", [BUDGETED, ADAPT])
def test_a_nested_model_is_not_trained_half_open(elastic, task, recipe):
    with pytest.raises(ValueError, match="nested"):
        fit(elastic.nested(), task, recipe=recipe, seed=3)


def test_a_teacher_is_not_asked_below_its_range(elastic, task):
    teacher = Elastic(elastic.plain(), ALL, length=task.length, block=16).made_for(
        "soft", lowest=0.5
    )
    with pytest.raises(ValueError, match=r"smallest is 0\.5"):
        fit(elastic, task, recipe=BUDGETED, seed=3, teacher=teacher)


def test_only_a_nested_model_has_views(elastic):
    with pytest.raises(ValueError, match="only of a nested model"):
        Views(elastic)


# Checkpoints.


@pytest.mark.parametrize("form", ["soft", "hard", "nested"])
def test_a_checkpoint_says_how_it_is_asked(elastic, form, tmp_path):
    model = (elastic.nested() if form == "nested" else elastic).made_for(form, 1, lowest=0.3)
    save(Checkpoint(model), tmp_path / "made")
    facts = json.loads((tmp_path / "made" / MANIFEST).read_text(encoding="utf-8"))["elastic"]
    assert (facts["form"], facts["floor"], facts["lowest"]) == (form, 1, 0.3)
    loaded = load(tmp_path / "made").model
    assert (loaded.form, loaded.floor, loaded.lowest) == (form, 1, 0.3)
    card = (tmp_path / "made" / "README.md").read_text(encoding="utf-8")
    assert "from 0.3 " in card and "at least 1 " in card


def edit(folder, change):
    path = folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"form": "nested"}, "nested"),
        ({"form": 3}, "soft, hard, nested"),
        ({"floor": -2}, "floor"),
        ({"floor": None}, "floor"),
        ({"lowest": 2.0}, "fraction"),
        ({"lowest": [0.5]}, "number"),
        ({"floor": 4, "lowest": 0.01}, "smallest feasible budget"),
    ],
)
def test_nonsense_in_a_manifest_is_refused(elastic, tmp_path, said, says):
    save(Checkpoint(elastic), tmp_path / "made")
    edit(tmp_path / "made", lambda manifest: manifest["elastic"].update(said))
    with pytest.raises(ValueError, match=says) as raised:
        load(tmp_path / "made")
    assert MANIFEST in str(raised.value)


def old(folder, model, **notes):
    """A checkpoint as it was before models knew how they are asked."""
    save(Checkpoint(model), folder)
    edit(folder, lambda m: [m["elastic"].pop(name) for name in ("form", "floor", "lowest")])
    edit(folder, lambda m: m.update(notes=notes))
    loaded = load(folder).model
    return loaded.form, loaded.floor, loaded.lowest


def point(budget):
    """One that was measured."""
    return {"budget": budget, "form": "hard", "cost": budget, "accuracy": 0.9, "rows": 10}


def test_an_old_checkpoint_is_asked_as_its_notes_say(elastic, tmp_path):
    dense, soft = DENSE.to_dict(), BUDGETED.to_dict()
    adapt = ADAPT.with_changes(floor=1, budgets=(0.3, 1.0), select_at=(0.5,)).to_dict()
    points = [point(0.4), point(1.0)]
    place = tmp_path / "old"
    assert old(place, elastic) == ("soft", 0, None)
    assert old(place, elastic.nested()) == ("nested", 0, None)
    assert old(place, elastic, recipes=[dense, soft]) == ("soft", 0, 0.25)
    assert old(place, elastic, recipes=[dense, soft, adapt]) == ("hard", 1, 0.3)
    assert old(place, elastic, recipes=[soft], measured=points) == ("soft", 0, 0.25)
    lower = [point(0.1)]
    assert old(place, elastic, recipes=[soft], measured=lower) == ("soft", 0, 0.1)
    # Gates that were set from scores were measured as hard masks.
    assert old(place, elastic, recipes=[dense]) == ("hard", 0, None)
    assert old(place, elastic, recipes=[dense], measured=points) == ("hard", 0, 0.4)
    assert old(place, elastic.nested(), recipes=[dense], measured=points) == ("nested", 0, 0.4)


# What is not a budget.


@pytest.mark.parametrize(
    "budget",
    [
        0.5,
        Decimal("0.5"),
        Fraction(1, 2),
        np.float32(0.5),
        np.float64(0.5),
        np.array(0.5),
        torch.tensor(0.5),
        torch.tensor(0.5, dtype=torch.float64),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_one_number_of_any_kind_is_a_budget(elastic, ids, budget):
    assert check_budget(budget) == 0.5 and type(check_budget(budget)) is float
    with torch.no_grad():
        for form in ("soft", "hard", "straight-through"):
            expected = elastic(ids, budget=0.5, form=form)
            assert torch.equal(elastic(ids, budget=budget, form=form), expected)
        skipping = Skipping(elastic)
        assert skipping.at(budget) is skipping.at(0.5)
    assert elastic.allocation(budget) == elastic.allocation(0.5)
    assert check_budget(1) == 1.0


@pytest.mark.parametrize(
    "budget",
    [
        "0.5",
        [0.5],
        (0.5,),
        {0.5},
        0.5 + 0j,
        np.complex64(0.5),
        None,
        True,
        torch.tensor([0.5, 0.75]),
        torch.tensor(0.5 + 0j),
        torch.tensor(True),
        np.array([0.5, 0.75]),
        b"0.5",
    ],
    ids=repr,
)
def test_what_is_not_one_number_is_refused_in_one_sentence(elastic, ids, budget):
    asked = [
        lambda: check_budget(budget),
        lambda: elastic.allocation(budget),
        lambda: elastic.cut(budget),
        lambda: Skipping(elastic).at(budget),
    ]
    several = isinstance(budget, torch.Tensor) and budget.dim() == 1
    if budget is not None:  # without a budget all units work
        asked += [
            lambda: elastic(ids, budget=budget, form="hard"),
            lambda: Skipping(elastic)(ids, budget=budget),
        ]
        if not several:  # a budget an example
            asked += [lambda: elastic(ids, budget=budget)]
    for ask in asked:
        with pytest.raises(ValueError, match="a budget is one number"):
            ask()


@pytest.mark.parametrize("budget", [0.0, -0.5, 1.01, float("nan"), float("inf"), Decimal("NaN")])
def test_a_number_that_is_no_fraction_is_refused(elastic, ids, budget):
    for ask in (
        lambda: check_budget(budget),
        lambda: elastic(ids, budget=budget),
        lambda: Skipping(elastic).at(budget),
        lambda: elastic(ids, budget=torch.full((6,), float(budget))),
    ):
        with pytest.raises(ValueError, match=r"fractions? in \(0, 1\]"):
            ask()


def test_a_number_of_budgets_that_is_not_that_of_the_rows_is_refused(elastic, ids):
    for wrong in (torch.full((4,), 0.5), torch.full((6, 2), 0.5), torch.full((0,), 0.5)):
        with pytest.raises(ValueError, match=r"budget"):
            elastic(ids, budget=wrong)
    for wrong in (torch.ones(6, dtype=torch.bool), torch.ones(6) + 0j):
        with pytest.raises(ValueError, match="numbers"):
            elastic(ids, budget=wrong)


def test_gates_and_allocations_of_another_model_are_refused(elastic, task, ids):
    heads = Elastic(elastic.plain(), length=12)
    count = len(elastic.units)
    for wrong in (torch.ones(count + 1), torch.ones(count - 1), torch.ones(1), torch.ones(3, 6, 6)):
        with pytest.raises(ValueError, match=f"each of the {count} units"):
            elastic(ids, z=wrong)
    with pytest.raises(ValueError, match=f"each of the {count} units"):
        elastic(ids, z=[1.0] * count)
    with pytest.raises(ValueError, match="rows"):
        elastic(ids, z=torch.ones(4, count))
    for wrong in (heads.allocation(0.5), Allocation.everything(heads.units)):
        with pytest.raises(ValueError, match="units of another model"):
            elastic(ids, allocation=wrong)
        with pytest.raises(ValueError, match="units of another model"):
            evaluate(elastic, task.test, allocation=wrong)


def test_a_block_has_neurons(encoder):
    for block in (0, -4, 2.0, "16"):
        with pytest.raises(ValueError, match="block"):
            Elastic(encoder, ALL, block=block)


def test_only_an_elastic_model_can_skip(encoder):
    with pytest.raises(ValueError, match=r"`Elastic\(model\)`"):
        Skipping(encoder)


# Numbers that stay what they are.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_gates_stay_exact_in_a_model_of_another_precision(elastic, tmp_path, dtype):
    z, cost = elastic.gates(1.0).detach(), float(elastic.cost(1.0).detach())
    kept = elastic.allocation(0.5)
    with torch.no_grad():
        elastic.gates.s[0] = -1e4  # a sensitivity of 0
    half = elastic.to(dtype)
    assert next(half.model.parameters()).dtype is dtype
    assert torch.equal(half.gates(1.0)[1:], z[1:]) and half.gates(1.0).isfinite().all()
    assert float(half.cost(1.0).detach()) == pytest.approx(cost, abs=0.1)
    assert half.allocation(0.5).count == kept.count
    with torch.no_grad():
        torch.manual_seed(1)
        ids = torch.randint(0, 8, (6, 12))
        save(Checkpoint(half), tmp_path / "half")
        loaded = load(tmp_path / "half").model
        assert next(loaded.model.parameters()).dtype is dtype
        for options in ({}, {"budget": 0.5}, {"budget": 0.5, "form": "hard"}, {"budget": 1.0}):
            assert torch.equal(loaded(ids, **options), half(ids, **options))


def test_fresh_gates_in_half_precision_cost_what_they_cost(encoder):
    half = Elastic(encoder).to(torch.bfloat16)
    costs = [float(half.cost(budget).detach()) for budget in (0.5, 0.75, 1.0)]
    assert costs == pytest.approx([0.5, 0.682, 0.998], abs=1e-3)


def test_a_model_without_weights_answers_with_shapes(elastic):
    ids = torch.zeros(6, 12, dtype=torch.long, device="meta")
    for model in (elastic.nested(), elastic):
        empty = model.to("meta")
        assert empty(ids).shape == (6, 2)
        with pytest.raises(ValueError, match="no weights"):
            empty(ids, budget=0.5, form="hard")
        with pytest.raises(ValueError, match="no weights"):
            empty.allocation(0.5)
    assert elastic.to("meta")(ids, budget=0.5).shape == (6, 2)


def test_serving_never_turns_dropout_on(task):
    from apportion.models.encoder import Encoder, EncoderConfig

    shape = {"layers": 2, "heads": 4, "hidden": 16, "feedforward": 64, "dropout": 0.5}
    elastic = Elastic(Encoder(EncoderConfig(task.vocabulary, task.length, **shape)))
    skipping = Skipping(elastic).prepare(0.5)
    ids = task.test.batch(torch.arange(6))[0]["input_ids"]
    with torch.no_grad():
        whole, half = skipping(ids), skipping(ids, budget=0.5)
        torch.nn.ModuleList([skipping]).train()
        skipping.train()
        assert torch.equal(skipping(ids), whole)
        assert torch.equal(skipping(ids, budget=0.5), half)
        assert torch.equal(skipping(ids, budget=0.75), Skipping(elastic)(ids, budget=0.75))
    assert not any(part.training for part in skipping.modules())


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_would_be_computed_twice_are_refused(task, reentrant):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=task.vocabulary,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    how = {"use_reentrant": reentrant}
    model = BertForSequenceClassification(config)
    model.gradient_checkpointing_enable(how)
    with pytest.raises(ValueError, match="gradient_checkpointing_disable"):
        Elastic(model)
    model.gradient_checkpointing_disable()
    elastic = Elastic(model, length=12).train()
    elastic.model.gradient_checkpointing_enable(how)
    nested = Elastic(model, length=12).nested()
    nested.model.gradient_checkpointing_enable(how)
    ids = task.test.batch(torch.arange(6))[0]["input_ids"]
    for asked in (
        lambda: elastic(ids, budget=0.5),
        lambda: fit(elastic, task, recipe=BUDGETED, seed=3),
        lambda: fit(nested, task, recipe=NESTED, seed=3),
    ):
        with pytest.raises(ValueError, match="gradient_checkpointing_disable"):
            asked()
    with torch.no_grad():
        elastic.eval()(ids, budget=0.5)  # nothing is computed twice without gradients


def test_the_order_alone_makes_a_model_nested(elastic, tmp_path):
    save(Checkpoint(elastic.nested()), tmp_path / "made")
    assert (tmp_path / "made" / GATES).exists()
    assert load(tmp_path / "made").model.form == "nested"
