"""What has to hold for every architecture in the table of sites."""

from __future__ import annotations

import copy
import pickle
import threading
from functools import cache, partial

import pytest
import torch
from architectures import OURS, SHAPES, ask, from_transformers

from apportion.elastic.elastic import Elastic, logits_of
from apportion.method.allocation import allocate
from apportion.method.units import Allocation
from apportion.models.sites import ARCHITECTURES, find_sites
from apportion.models.surgery import cut
from apportion.serving.runtime.skipping import Skipping
from apportion.training.prefixes import Views

MODELS = OURS | {
    (name, kernel): partial(from_transformers, name, kernel)
    for name in SHAPES
    for kernel in ("sdpa", "eager")
}
KINDS = [("heads",), ("heads", "feedforward")]


# BERT is tried with both kernels, the others with their second one where there is time; and so is
# XLM-RoBERTa, whose code is RoBERTa's.
_SLOW = {(name, "eager") for name in set(SHAPES) - {"bert"}} | {("xlm-roberta", "sdpa")}


@pytest.fixture(
    params=[
        pytest.param(key, marks=[pytest.mark.slow] if key in _SLOW else [], id=" ".join(key))
        for key in MODELS
    ]
)
def model(request):
    made, state = built(request.param)
    torch.set_rng_state(state)  # whether it was built for this test or for an earlier one
    return copy.deepcopy(made)


@cache
def built(key):
    """A model that tests take copies of, and the random state that making it left."""
    torch.manual_seed(0)
    return MODELS[key]().eval(), torch.get_rng_state()


@pytest.fixture(params=KINDS, ids="+".join)
def elastic(request, model):
    elastic = Elastic(model, kinds=request.param, length=10, block=32).eval()
    with torch.no_grad():
        elastic.gates.a.normal_()
        elastic.gates.s.normal_()
    return elastic


@pytest.fixture(params=[False, True], ids=["full", "padded"])
def inputs(request, model):
    if model.config.model_type == "vit":
        if request.param:
            pytest.skip("images have no padding")
        return {"pixel_values": torch.randn(5, 3, 12, 12)}
    ids = torch.randint(2, 20, (5, 10))
    if not request.param:
        return {"input_ids": ids}
    lengths = torch.tensor([10, 3, 7, 1, 5])
    return {"input_ids": ids, "attention_mask": (torch.arange(10) < lengths[:, None]).long()}


def in_double(inputs):
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def test_every_architecture_has_a_model_here():
    assert {architecture for architecture, _ in MODELS} == set(ARCHITECTURES)


def test_all_open_is_the_original_model(model, elastic, inputs):
    everything = Allocation.everything(elastic.units)
    with torch.no_grad():
        expected = ask(model, inputs)
        assert torch.equal(ask(elastic, inputs), expected)
        assert torch.equal(ask(elastic, inputs, allocation=everything), expected)
        assert torch.equal(ask(elastic, inputs, budget=1.0, form="hard"), expected)


def test_fresh_gates_at_a_full_budget_are_nearly_the_original_model(model, inputs):
    with torch.no_grad():
        soft = ask(Elastic(model, length=10), inputs, budget=1.0)
        assert torch.allclose(soft, ask(model, inputs), atol=0.02)


@torch.no_grad()
def test_hard_equals_cut(elastic, inputs):
    for budget in (0.1, 0.25, 0.5, 0.8):
        hard = ask(elastic, inputs, budget=budget, form="hard")
        smaller = elastic.cut(budget).eval()
        assert torch.allclose(ask(smaller, inputs), hard, atol=1e-5), budget
        assert not torch.allclose(hard, ask(elastic, inputs), atol=1e-3), budget


def test_a_layer_with_no_heads_works(elastic, inputs):
    """Uneven: nothing left in the first layer, all but one unit in the others."""
    kept = [p for p, unit in enumerate(elastic.units) if unit.layer > 0 and unit.index != 1]
    allocation = Allocation.of(elastic.units, kept)
    smaller = cut(elastic.plain(), allocation).eval()
    with torch.no_grad():
        assert torch.allclose(
            ask(smaller, inputs), ask(elastic, inputs, allocation=allocation), atol=1e-5
        )


def test_cutting_everything_leaves_what_masking_everything_does(elastic, inputs):
    nothing = Allocation.of(elastic.units, [])
    with torch.no_grad():
        logits = ask(cut(elastic.plain(), nothing).eval(), inputs)
        masked = ask(elastic, inputs, allocation=nothing)
    assert logits.isfinite().all()
    assert torch.allclose(logits, masked, atol=1e-5)


def test_a_cut_model_holds_its_own_weights_and_no_others(elastic):
    """Not views of the whole ones, which would stay in memory; and nobody else's."""
    smaller = elastic.cut(0.5)
    whole = {value.untyped_storage().data_ptr() for value in elastic.model.state_dict().values()}
    for name, value in smaller.state_dict().items():
        memory = value.untyped_storage()
        assert memory.nbytes() == value.numel() * value.element_size(), name
        assert value.numel() == 0 or memory.data_ptr() not in whole, name


def test_cut_twice_is_cut_once(elastic):
    once = cut(elastic.plain(), elastic.allocation(0.5))
    again = Elastic(once, kinds=elastic.kinds, length=10, block=32)
    twice = cut(once, Allocation.everything(again.units))
    for name, value in once.state_dict().items():
        assert torch.equal(value, twice.state_dict()[name])


def test_gradients_reach_weights_and_gates(elastic, inputs):
    for form in ("soft", "straight-through"):
        elastic.zero_grad()
        ask(elastic, inputs, budget=0.6, form=form).square().sum().backward()
        for name, parameter in elastic.named_parameters():
            assert parameter.grad is not None, name
        assert elastic.gates.a.grad.abs().min() > 0
        assert elastic.gates.s.grad.abs().min() > 0


def test_each_example_may_have_its_own_budget(elastic, inputs):
    budgets = torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0])
    with torch.no_grad():
        together = ask(elastic, inputs, budget=budgets)
        for row, budget in enumerate(budgets):
            mine = {name: values[row : row + 1] for name, values in inputs.items()}
            alone = ask(elastic, mine, budget=float(budget))
            assert torch.allclose(together[row : row + 1], alone, atol=1e-5)


def test_neither_wrapping_nor_cutting_touches_the_given_model(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    elastic = Elastic(model, length=10)
    elastic.cut(0.5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in elastic.plain().modules())
    assert not any(module._forward_pre_hooks for module in elastic.cut(0.5).modules())


def test_the_models_own_weights_keep_their_names(model):
    names = set(model.state_dict())
    inside = {n.removeprefix("model.") for n in Elastic(model).state_dict() if "gates" not in n}
    assert inside == names


def wrong_answers(model, inputs, budgets, expected):
    """The budgets at which threads that all ask at once do not get what is expected."""
    wrong = []
    together = threading.Barrier(len(budgets))

    def keep_asking(budget, answer):
        together.wait()
        with torch.no_grad():
            for _ in range(2):
                if not torch.allclose(ask(model, inputs, budget=budget), answer, atol=1e-6):
                    wrong.append(budget)

    threads = [
        threading.Thread(target=keep_asking, args=pair)
        for pair in zip(budgets, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_threads_that_ask_for_different_budgets_each_get_their_own(elastic, inputs):
    budgets = [0.1, 0.3, 0.6, 1.0]
    with torch.no_grad():
        expected = [ask(elastic, inputs, budget=budget) for budget in budgets]
    assert wrong_answers(elastic, inputs, budgets, expected) == []


@torch.no_grad()
def test_skipping_equals_hard_and_cut(elastic, inputs):
    skipping = Skipping(elastic)
    for budget in (0.05, 0.3, 0.5, 0.8, 1.0):
        skipped = ask(skipping, inputs, budget=budget)
        hard = ask(elastic, inputs, budget=budget, form="hard")
        assert torch.allclose(skipped, hard, atol=1e-5), budget
        assert torch.allclose(skipped, ask(elastic.cut(budget).eval(), inputs), atol=1e-5), budget
        assert torch.equal(ask(skipping, inputs, budget=budget), skipped), budget  # made before
    assert torch.equal(ask(skipping, inputs), ask(elastic, inputs))


def test_skipping_copies_only_what_it_slices(elastic):
    """All other tensors of a budget's model are those of the whole model, in the same memory."""
    skipping = Skipping(elastic)
    whole = {value.untyped_storage().data_ptr() for value in skipping.whole.state_dict().values()}
    sliced = {name for site in find_sites(elastic.model) for name in (*site.inputs, site.output)}
    smaller = skipping.at(0.5)
    for name, value in smaller.state_dict().items():
        if name.rpartition(".")[0] not in sliced:
            assert value.untyped_storage().data_ptr() in whole, name
    full = skipping.at(1.0).state_dict()
    for name, value in skipping.whole.state_dict().items():
        assert full[name].data_ptr() == value.data_ptr(), name


def test_a_hook_on_a_layer_sees_every_budget(elastic, inputs):
    """Modules of a budget have the hooks of the whole model: memory of their own would be waste."""
    skipping = Skipping(elastic).prepare(0.3, 0.8)
    layer = find_sites(skipping.whole)[0].inputs[0].rpartition(".")[0]
    seen = []
    hook = skipping.whole.get_submodule(layer).register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        for budget in (None, 0.3, 0.8, 0.5):
            ask(skipping, inputs, budget=budget)
        assert len(seen) == 4
        hook.remove()
        ask(skipping, inputs, budget=0.3)
    assert len(seen) == 4


def test_skipping_keeps_the_weights_of_its_moment(elastic, inputs):
    skipping = Skipping(elastic).prepare(0.5)
    with torch.no_grad():
        before = ask(skipping, inputs, budget=0.5)
        for parameter in elastic.parameters():
            parameter.add_(1.0)
        assert torch.equal(ask(skipping, inputs, budget=0.5), before)
    assert skipping.at(0.5) is skipping.at(0.5)


def test_skipping_survives_what_is_done_to_models(elastic, inputs):
    skipping = Skipping(elastic)
    assert not skipping.training
    with torch.inference_mode():
        answer = ask(skipping, inputs, budget=0.5)  # slices made here must be good elsewhere
    assert torch.equal(ask(skipping, inputs, budget=0.5), answer)
    ask(skipping, inputs, budget=0.5).sum().backward()
    copied = pickle.loads(pickle.dumps(copy.deepcopy(skipping)))
    with torch.no_grad():
        for parameter in skipping.whole.parameters():
            parameter.zero_()
        assert torch.equal(ask(copied, inputs, budget=0.5), answer)
        doubled = ask(copied.double(), in_double(inputs), budget=0.5)
    assert doubled.dtype == torch.float64
    assert torch.allclose(doubled, answer.double(), atol=1e-4)
    for budget in torch.linspace(0.01, 1.0, 70).tolist():
        copied.at(budget)
    assert len(copied._of_budget) <= 64


def test_threads_that_skip_at_different_budgets_each_get_their_own(elastic, inputs):
    skipping = Skipping(elastic)  # nothing prepared: the slices are made while others ask
    budgets = [0.1, 0.3, 0.5, 0.7, 0.9, None] * 2
    with torch.no_grad():
        expected = [ask(elastic.cut(b or 1.0).eval(), inputs) for b in budgets]
    assert wrong_answers(skipping, inputs, budgets, expected) == []


def test_units_cost_what_their_arithmetic_costs(model):
    """Heads: four projections and two products of length; blocks: two projections."""
    heads, blocks = find_sites(model, block=32)[:2]
    assert heads.unit_macs(10) == 4 * 10 * 32 * 8 + 2 * 10 * 10 * 8
    assert blocks.unit_macs(10) == 2 * 10 * 32 * 32


def test_an_unknown_architecture_is_told_which_ones_are_known():
    with pytest.raises(
        ValueError, match=r"unknown architecture 'Linear'; known: apportion-encoder"
    ):
        find_sites(torch.nn.Linear(2, 2))


def test_wrong_requests_are_refused(model, elastic):
    with pytest.raises(ValueError, match="elastic already"):
        Elastic(elastic)
    with pytest.raises(ValueError, match="kinds of units are"):
        find_sites(model, ("neurons",))
    with pytest.raises(ValueError, match="choose a block"):
        find_sites(model, block=50)
    with pytest.raises(ValueError, match="a call's form is one of"):
        elastic(torch.zeros(1, 4, dtype=torch.long), budget=0.5, form="harder")
    with pytest.raises(ValueError, match="4 heads were expected in layer"):
        cut(elastic.cut(0.5), elastic.allocation(0.5))


def test_a_sequence_longer_than_our_encoder_is_refused():
    for build in OURS.values():
        with pytest.raises(ValueError, match="more than this encoder's 10"):
            build()(torch.zeros(1, 11, dtype=torch.long))


def test_allocation_by_other_scores_cuts_the_same_way(elastic, inputs):
    allocation = allocate(torch.rand(len(elastic.units)), elastic.units, budget=0.4)
    with torch.no_grad():
        smaller = cut(elastic.plain(), allocation).eval()
        assert torch.allclose(
            ask(smaller, inputs), ask(elastic, inputs, allocation=allocation), atol=1e-5
        )


# One order for all budgets.


def same(one, other):
    assert torch.allclose(one, other, atol=1e-5)


def test_putting_units_in_order_changes_nothing_that_is_computed(elastic, inputs):
    scores = torch.rand(len(elastic.units))
    nested = elastic.nested(scores)
    with torch.no_grad():
        same(ask(nested, inputs), ask(elastic, inputs))
        for budget in (0.25, 0.5, 0.8):
            kept = allocate(scores, elastic.units, budget=budget)
            same(
                ask(nested, inputs, budget=budget, form="hard"),
                ask(elastic, inputs, allocation=kept),
            )
            same(ask(nested.cut(budget), inputs), ask(elastic, inputs, allocation=kept))


def test_the_gates_of_a_nested_model_go_with_their_units(model, inputs):
    """Half open, it computes what it did before its units were put in order."""
    elastic = Elastic(model, ("heads", "feedforward"), length=10, tau=0.6, block=32).eval()
    with torch.no_grad():
        elastic.gates.a.normal_()
        elastic.gates.s.normal_()
        nested = elastic.nested(torch.rand(len(elastic.units)))
        assert nested.gates.tau == 0.6
        opened = (ask(one, inputs, z=one.gates(0.4)) for one in (nested, elastic))
        same(*opened)


def test_of_a_nested_model_every_budget_keeps_the_first_units_of_each_layer(elastic):
    nested = elastic.nested()
    smaller = None
    for budget in (0.1, 0.3, 0.5, 0.7, 1.0):
        kept = nested.allocation(budget)
        for layer, kind in nested.units.spans:
            indices = kept.indices(layer, kind)
            assert indices == list(range(len(indices)))
        if smaller is not None:
            assert all(now or not before for before, now in zip(smaller, kept.kept, strict=True))
        smaller = kept.kept


def test_a_nested_model_answers_every_budget_from_one_set_of_weights(elastic, inputs):
    nested = elastic.nested()
    skipping = Skipping(nested).prepare(0.2, 0.4, 0.6, 0.8)
    whole = {value.untyped_storage().data_ptr() for value in skipping.whole.state_dict().values()}
    for budget in (0.2, 0.4, 0.6, 0.8):
        for name, value in skipping.at(budget).state_dict().items():
            assert value.numel() == 0 or value.untyped_storage().data_ptr() in whole, name
        with torch.no_grad():
            hard = ask(nested, inputs, budget=budget, form="hard")
            same(ask(skipping, inputs, budget=budget), hard)


def test_views_compute_what_the_hard_mask_does_and_gradients_reach_the_weights(elastic, inputs):
    nested = elastic.nested()
    views = Views(nested)
    for budget in (0.2, 0.6):
        kept = nested.allocation(budget)
        masked = ask(nested, inputs, allocation=kept)
        seen = logits_of(views(kept, **inputs))
        same(seen, masked)
        names, weights = zip(*nested.model.named_parameters(), strict=True)
        wanted, found = (
            torch.autograd.grad(logits.square().sum(), weights, allow_unused=True)
            for logits in (masked, seen)
        )
        for name, one, other in zip(names, wanted, found, strict=True):
            one = torch.zeros(1) if one is None else one
            other = torch.zeros(1) if other is None else other
            assert torch.allclose(one, other, atol=1e-3, rtol=1e-3), name


def test_views_follow_weights_that_change(elastic, inputs):
    nested = elastic.nested()
    views, kept = Views(nested), nested.allocation(0.5)
    with torch.no_grad():
        before = logits_of(views(kept, **inputs))
        for parameter in nested.model.parameters():
            parameter.mul_(1.1)
        assert not torch.allclose(logits_of(views(kept, **inputs)), before)
        same(logits_of(views(kept, **inputs)), ask(nested, inputs, allocation=kept))
    with pytest.raises(ValueError, match="only of a nested model"):
        Views(elastic)
