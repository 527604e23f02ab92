"""The losses: what a budget costs (Eq. 5), distillation (Eq. 6), and that of hidden states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def budget_loss(cost: Tensor, budget: Tensor | float, lam: float, beta: float) -> Tensor:
    """λ·C(B) + β·max(0, C(B) − B)², averaged over examples that have their own budgets."""
    excess = torch.clamp(cost - budget, min=0.0)
    return (lam * cost + beta * excess.square()).mean()


def distill_loss(task_loss: Tensor, divergence: Tensor, alpha: float, T: float) -> Tensor:
    """(1−α)·task + α·T²·D, with D the divergence of student and teacher at temperature T."""
    return (1.0 - alpha) * task_loss + alpha * T**2 * divergence


def hidden_loss(
    student: Sequence[Tensor], teacher: Sequence[Tensor], mask: Tensor | None = None
) -> Tensor:
    """Σ‖student − teacher‖² / Σ‖teacher‖² over real tokens, averaged over the layers."""
    shares = []
    for learned, taught in zip(student, teacher, strict=True):
        if mask is not None:
            learned, taught = learned[mask.bool()], taught[mask.bool()]
        shares.append((learned - taught).square().sum() / taught.square().sum())
    return torch.stack(shares).mean()
