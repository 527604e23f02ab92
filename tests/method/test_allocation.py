from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from apportion.method.allocation import allocate, buying_order, straight_through
from apportion.method.gates import Gates
from apportion.method.units import Allocation, Unit, Units

budgets = st.floats(0.01, 1.0)


@st.composite
def scored_units(draw):
    """Units of both kinds with costs of their own, and a score each."""
    layers = draw(st.integers(1, 4))
    heads, blocks = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    head_cost, block_cost = draw(st.floats(0.5, 4)), draw(st.floats(0.5, 4))
    members, costs = [], []
    for layer in range(layers):
        members += [Unit(layer, 0, i) for i in range(heads)]
        costs += [head_cost] * heads
        members += [Unit(layer, 1, i) for i in range(blocks)]
        costs += [block_cost] * blocks
    units = Units(tuple(members), tuple(costs))
    scores = draw(st.lists(st.floats(0, 1, width=32), min_size=len(units), max_size=len(units)))
    return units, torch.tensor(scores)


def least_budget(scores, units, floor):
    """What the floor costs: all but half of the last unit that it asks for must be paid."""
    order, required = buying_order(scores, units, floor)
    shares = units.shares[order[:required]]
    return float(shares.sum() - shares[-1] / 2) if required else 0.0


@pytest.mark.parametrize(
    ("budget", "kept"), [(0.10, 2), (0.25, 4), (0.50, 8), (0.75, 12), (1.0, 16), (0.01, 1)]
)
def test_k_of_sixteen_heads(budget, kept):
    allocation = allocate(torch.rand(16), Units.grid(4, 4), budget=budget)
    assert allocation.count == kept
    assert allocation.cost == pytest.approx(kept / 16)


@pytest.mark.parametrize(
    ("units", "budget", "kept"), [(6, 0.75, 5), (10, 0.25, 3), (100, 0.145, 15)]
)
def test_halves_round_up(units, budget, kept):
    assert allocate(torch.rand(units), Units.grid(1, units), budget=budget).count == kept


@given(scored_units(), budgets, budgets, st.integers(0, 1))
def test_more_budget_never_drops_a_unit_that_the_same_scores_bought(given_units, one, two, floor):
    units, scores = given_units
    low, high = sorted((one, two))
    assume(low >= least_budget(scores, units, floor))
    smaller, larger = (
        allocate(scores, units, budget=budget, floor=floor) for budget in (low, high)
    )
    assert all(b for a, b in zip(smaller.kept, larger.kept, strict=True) if a)


@given(scored_units(), st.randoms(use_true_random=False), budgets, budgets, st.integers(0, 1))
def test_with_a_fixed_order_more_budget_never_swaps_a_unit_out(
    given_units, chance, one, two, floor
):
    units, _ = given_units
    gates = Gates(units)
    order = list(range(len(units)))
    chance.shuffle(order)
    torch.nn.init.normal_(gates.a)  # what they learned does not matter any more
    gates.fix_order(torch.tensor(order))
    low, high = sorted((one, two))
    assume(low >= least_budget(gates.scores(low), units, floor))
    smaller, larger = (allocate(gates.scores(b), units, budget=b, floor=floor) for b in (low, high))
    assert all(b for a, b in zip(smaller.kept, larger.kept, strict=True) if a)
    if not floor:
        assert sorted(order[: smaller.count]) == [p for p, kept in enumerate(smaller.kept) if kept]


@given(scored_units(), budgets)
def test_the_budget_is_met_to_half_a_unit(given_units, budget):
    units, scores = given_units
    allocation = allocate(scores, units, budget=budget)
    assert allocation.count >= 1
    dearest = float(units.shares.max())
    if allocation.count > 1:
        assert allocation.cost <= budget + dearest / 2 + 1e-6
    if allocation.count < len(units):
        assert allocation.cost >= budget - dearest / 2 - 1e-6


@given(scored_units())
def test_a_full_budget_buys_everything(given_units):
    units, scores = given_units
    assert allocate(scores, units, budget=1.0).count == len(units)


@given(scored_units(), budgets)
def test_a_floor_is_kept_or_refused_with_a_budget_that_would_do(given_units, budget):
    units, scores = given_units
    try:
        allocation = allocate(scores, units, budget=budget, floor=1)
    except ValueError as error:
        allocation = allocate(scores, units, budget=float(str(error).split()[-1]), floor=1)
    for layer, kind in units.spans:
        assert allocation.indices(layer, kind)


def test_the_most_wanted_per_cost_are_bought_first():
    units = Units((Unit(0, 0, 0), Unit(0, 0, 1), Unit(0, 1, 0)), (1.0, 1.0, 4.0))
    allocation = allocate(torch.tensor([0.3, 0.4, 0.9]), units, budget=0.4)
    assert allocation.to_dict() == {"layer 0": {"heads": [0, 1], "feedforward": []}}


def test_without_a_floor_a_layer_may_lose_all_its_heads():
    scores = torch.tensor([0.9, 0.8, 0.1, 0.2])
    assert allocate(scores, Units.grid(2, 2), budget=0.5).to_dict() == {
        "layer 0": {"heads": [0, 1]},
        "layer 1": {"heads": []},
    }
    assert allocate(scores, Units.grid(2, 2), budget=0.5, floor=1).to_dict() == {
        "layer 0": {"heads": [0]},
        "layer 1": {"heads": [1]},
    }


def test_ties_always_fall_the_same_way():
    assert allocate(torch.zeros(8), Units.grid(2, 4), budget=0.5).to_dict() == {
        "layer 0": {"heads": [0, 1, 2, 3]},
        "layer 1": {"heads": []},
    }


def test_an_infeasible_floor_names_the_smallest_budget_that_would_do():
    with pytest.raises(ValueError, match=r"smallest feasible budget is 0\.219"):
        allocate(torch.rand(16), Units.grid(4, 4), budget=0.2, floor=1)
    assert allocate(torch.rand(16), Units.grid(4, 4), budget=0.219, floor=1).count == 4


def test_bad_scores_are_refused():
    with pytest.raises(ValueError, match="4 units need as many scores"):
        allocate(torch.rand(3), Units.grid(2, 2), budget=0.5)
    with pytest.raises(ValueError, match="a floor is 0 or more"):
        allocate(torch.rand(4), Units.grid(2, 2), budget=0.5, floor=-1)
    with pytest.raises(ValueError, match="finite"):
        allocate(torch.tensor([1.0, 2.0, float("nan"), 0.0]), Units.grid(2, 2), budget=0.5)
    with pytest.raises(ValueError, match="more than the 2 heads of layer 0"):
        allocate(torch.rand(4), Units.grid(2, 2), budget=1.0, floor=3)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20))
def test_straight_through_has_the_masks_value_and_the_gates_gradient(gates):
    z = torch.tensor(gates, requires_grad=True)
    mask = (z.detach() > 0.4).float()
    through = straight_through(z, mask)
    assert torch.equal(through.detach(), mask)
    through.sum().backward()
    assert torch.equal(z.grad, torch.ones_like(z))


def test_an_allocation_survives_json():
    units = Units.grid(2, 3)
    allocation = Allocation.of(units, [0, 4])
    assert Allocation.from_dict(units, allocation.to_dict()) == allocation
    assert Units.from_dict(units.to_dict()) == units
    with pytest.raises(ValueError, match="does not have"):
        Allocation.from_dict(units, {"layer 0": {"heads": [7]}, "layer 1": {"heads": []}})
    with pytest.raises(ValueError, match="says nothing of the heads of layer 1"):
        Allocation.from_dict(units, {"layer 0": {"heads": [1]}})
