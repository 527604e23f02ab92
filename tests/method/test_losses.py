from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from apportion.data.task import CLASSIFICATION
from apportion.method.losses import budget_loss, distill_loss, hidden_loss


def test_the_budget_loss_follows_equation_5():
    within = budget_loss(torch.tensor(0.3), 0.5, lam=0.05, beta=4.0)
    above = budget_loss(torch.tensor(0.7), 0.5, lam=0.05, beta=4.0)
    assert float(within) == pytest.approx(0.05 * 0.3)
    assert float(above) == pytest.approx(0.05 * 0.7 + 4.0 * 0.2**2)


def test_budgets_an_example_are_averaged():
    costs, budgets = torch.tensor([0.3, 0.7]), torch.tensor([0.5, 0.5])
    both = budget_loss(costs, budgets, 0.05, 4.0)
    each = [budget_loss(c, 0.5, 0.05, 4.0) for c in costs]
    assert float(both) == pytest.approx(float(sum(each)) / 2)


def test_the_distillation_loss_follows_equation_6():
    student, teacher = torch.randn(5, 3), torch.randn(5, 3)
    task = torch.tensor(1.7)
    p, q = F.softmax(teacher / 2.0, -1), F.softmax(student / 2.0, -1)
    divergence = (p * (p / q).log()).sum(-1).mean()
    expected = 0.5 * 1.7 + 0.5 * 4.0 * float(divergence)
    apart = CLASSIFICATION.divergence(student, teacher, T=2.0)
    assert float(distill_loss(task, apart, 0.5, 2.0)) == pytest.approx(expected, rel=1e-5)


def test_a_student_that_agrees_pays_only_for_the_task():
    logits = torch.randn(4, 2)
    apart = CLASSIFICATION.divergence(logits, logits, T=2.0)
    assert float(distill_loss(torch.tensor(2.0), apart, 0.5, 2.0)) == pytest.approx(1.0)


def test_hidden_states_are_compared_over_real_tokens_layer_by_layer():
    teacher = [torch.ones(1, 3, 2), 2 * torch.ones(1, 3, 2)]
    student = [torch.zeros(1, 3, 2), 2 * torch.ones(1, 3, 2)]
    student[1][0, 2] = 99.0  # padding
    mask = torch.tensor([[True, True, False]])
    assert float(hidden_loss(student, teacher, mask)) == pytest.approx((1.0 + 0.0) / 2)
    assert float(hidden_loss(student, teacher)) > 100
