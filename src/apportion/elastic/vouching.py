"""Vouching: how often a budget answers as the whole model does, with an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from apportion.data.task import Split
from apportion.elastic.elastic import Elastic
from apportion.elastic.evaluation import answers_by_batch
from apportion.models.surgery import view

AGREEMENT = 0.95  # what a budget has to be vouched for to be in a converted model's range
CONFIDENCE = 0.95
FEWEST = 200  # texts below which nothing is vouched for


@torch.no_grad()
def vouch(
    model: Elastic,
    split: Split,
    *,
    whole: nn.Module,
    budgets: Sequence[float],
    agreement: float = AGREEMENT,
) -> dict[str, Any]:
    """The share of a split's rows that each budget answers as the `whole` model, and its bound.

    The bound is the lower end of an exact 95 % interval for texts like these, so the rows must be
    none that units were chosen or repaired on. `from` is the smallest budget from which on every
    one reaches the agreement; none does where it is missing. Fewer than 200 rows vouch for nothing,
    but may rule a budget out: then `from` is the smallest from which on none is.
    """
    facts: dict[str, Any] = {"rows": len(split)}
    if not len(split):
        return asking(facts, agreement)
    wanted = answers_of(whole, split)
    served = model.served()
    found: dict[float, tuple[float, float]] = {}
    for budget in sorted(budgets):
        answers = answers_of(view(served, model.allocation(budget)), split)
        agreed = int(split.criterion.agreement(answers, wanted).sum())
        found[budget] = agreed / len(split), bounds(agreed, len(split))[0]
    facts["agreement"] = {
        f"{budget:g}": [round(share, 4), round(bound, 4)]
        for budget, (share, bound) in found.items()
    }
    return asking(facts, agreement)


@torch.no_grad()
def apart(
    model: Elastic, split: Split, *, wanted: Tensor, budgets: Sequence[float]
) -> list[tuple[float, float]]:
    """Of each budget, √KL from the `wanted` answers on a split, and the share that it answers so.

    √KL is in the measure of the answers that change, by Pinsker's inequality.
    """
    served, found = model.served(), []
    for budget in budgets:
        answers = answers_of(view(served, model.allocation(budget)), split)
        divergence = max(0.0, float(split.criterion.divergence(answers, wanted)))
        agreed = float(split.criterion.agreement(answers, wanted).float().mean())
        found.append((math.sqrt(divergence), agreed))
    return found


def asking(told: Mapping[str, Any], agreement: float) -> dict[str, Any]:
    """What was found, with the range that another agreement gives."""
    if not 0.0 < agreement < 1.0:
        raise ValueError(f"an agreement is between 0 and 1, such as 0.95, not {agreement}")
    rows = told["rows"]
    facts = {"rows": rows, "asked": agreement}
    if "agreement" not in told:  # no rows; in older checkpoints, few
        return facts
    for budget, (share, bound) in sorted(told["agreement"].items(), key=lambda one: -float(one[0])):
        possible = bound if rows >= FEWEST else bounds(round(share * rows), rows)[1]
        if possible < agreement:
            break
        facts["from"] = float(budget)
    return {**facts, "agreement": told["agreement"]}


def bounds(successes: int, trials: int) -> tuple[float, float]:
    """The ends of the exact (Clopper-Pearson) two-sided 95 % interval of a share."""
    from scipy import stats  # slow to import

    interval = stats.binomtest(successes, trials).proportion_ci(CONFIDENCE, method="exact")
    return float(interval.low), float(interval.high)


@torch.no_grad()
def answers_of(model: nn.Module, split: Split) -> Tensor:
    """The logits of all rows [rows, outputs], in the order of `split.batches`."""
    was_training = model.training
    model.eval()
    found = [logits.float() for logits, _ in answers_by_batch(model, split)]
    model.train(was_training)
    return torch.cat(found)
