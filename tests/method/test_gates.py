from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion.method.allocation import allocate
from apportion.method.gates import Gates
from apportion.method.units import Unit, Units, check_budget

UNITS = Units.grid(2, 3)
budgets = st.floats(0.0, 1.0, exclude_min=True)
logits = st.lists(st.floats(-8, 8), min_size=6, max_size=6)


def gates_with(a: list[float], s: list[float], tau: float = 1.0, units: Units = UNITS) -> Gates:
    gates = Gates(units, tau)
    with torch.no_grad():
        gates.a.copy_(torch.tensor(a))
        gates.s.copy_(torch.tensor(s))
    return gates


@given(a=logits, s=logits, first=budgets, second=budgets, tau=st.floats(0.2, 5))
def test_more_budget_never_closes_a_gate(a, s, first, second, tau):
    gates = gates_with(a, s, tau)
    low, high = sorted((first, second))
    assert (gates(high) >= gates(low)).all()


@given(a=logits, s=logits, first=budgets, second=budgets)
def test_more_budget_never_costs_less(a, s, first, second):
    gates = gates_with(a, s)
    low, high = sorted((first, second))
    assert gates.cost(gates(high)) >= gates.cost(gates(low)) - 1e-7


@given(a=logits, s=logits, budget=budgets)
def test_a_gate_follows_equation_1(a, s, budget):
    z = gates_with(a, s)(budget).detach()
    for unit in range(6):
        clipped = min(max(budget, 1e-4), 1 - 1e-4)
        logit = torch.log(torch.tensor(clipped) / (1 - torch.tensor(clipped)))
        softplus = torch.log1p(torch.exp(torch.tensor(s[unit])))
        expected = 1 / (1 + torch.exp(-(a[unit] + softplus * logit)))
        assert z[unit] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(("budget", "cost"), [(0.50, 0.500), (0.75, 0.682), (1.00, 0.998)])
def test_fresh_gates_cost_what_the_paper_shows(budget, cost):
    gates = Gates(Units.grid(4, 4))
    assert float(gates.cost(gates(budget)).detach()) == pytest.approx(cost, abs=5e-4)


def test_cost_is_weighted_by_what_units_cost():
    units = Units((Unit(0, 0, 0), Unit(0, 1, 0)), (1.0, 3.0))
    gates = Gates(units)
    assert float(gates.cost(torch.tensor([1.0, 0.0]))) == pytest.approx(0.25)
    assert float(gates.cost(torch.tensor([0.0, 1.0]))) == pytest.approx(0.75)


def test_each_example_may_have_its_own_budget():
    gates = gates_with([0.3] * 6, [1.0] * 6)
    z = gates(torch.tensor([0.2, 0.9]))
    assert z.shape == (2, 6)
    assert torch.equal(z[0], gates(0.2))
    assert gates.cost(z).shape == (2,)


@pytest.mark.parametrize("budget", [0.0, -0.1, 1.01, float("nan")])
def test_a_budget_outside_its_range_is_refused(budget):
    with pytest.raises(ValueError, match=r"in \(0, 1\]"):
        check_budget(budget)
    with pytest.raises(ValueError, match=r"in \(0, 1\]"):
        Gates(UNITS)(budget)
    with pytest.raises(ValueError, match=r"in \(0, 1\]"):
        Gates(UNITS)(torch.tensor([0.5, budget]))


def test_a_temperature_must_be_positive():
    with pytest.raises(ValueError, match="tau"):
        Gates(UNITS, tau=0.0)


def test_gates_set_from_scores_open_the_units_that_score_highest():
    gates = Gates(Units.grid(2, 4))
    scores = torch.tensor([0.1, 0.9, -0.3, 0.5, 0.2, 0.8, 0.0, 0.5])
    gates.order_by(scores)
    units = Units.grid(2, 4)
    for budget, count in ((0.25, 2), (0.5, 4), (0.75, 6)):
        z = gates(budget)
        assert int((z > 0.5).sum()) == count
        assert allocate(z, units, budget=budget) == allocate(scores, units, budget=budget)
        assert abs(float(gates.cost(z).detach()) - budget) < 0.06


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 2, 3, 4, 4], [1, 2, 3, 4, 5, 6]])
def test_an_order_names_every_unit_once(order):
    with pytest.raises(ValueError, match="an order of 6 units names each of them once"):
        Gates(UNITS).fix_order(torch.tensor(order))
