"""The losses: what a budget costs (Eq. 5), what a teacher says (Eq. 6), and how it gets there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def budget_loss(cost: Tensor, budget: Tensor | float, lam: float, beta: float) -> Tensor:
    """λ·C(B) + β·max(0, C(B) − B)², averaged over examples that have their own budgets."""
    excess = torch.clamp(cost - budget, min=0.0)
    return (lam * cost + beta * excess.square()).mean()


def distill_loss(
    task_loss: Tensor, student: Tensor, teacher: Tensor, alpha: float, T: float
) -> Tensor:
    """(1−α)·task + α·T²·KL(softmax(teacher/T) ‖ softmax(student/T))."""
    divergence = F.kl_div(
        F.log_softmax(student / T, dim=-1),
        F.log_softmax(teacher / T, dim=-1),
        reduction="batchmean",
        log_target=True,
    )
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
