"""Least squares: a linear layer that makes up for the columns of its input that are missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Equations:
    """Normal equations of what is missing from a site's output; the last row is the bias's."""

    gram: Tensor  # [columns + 1, columns + 1]
    right: Tensor  # [columns + 1, outputs]
    lost: float  # mean squares that are missing before the repair, summed over tokens
    tokens: int

    @classmethod
    def none(cls, weight: Tensor) -> Equations:
        """Those of no tokens."""
        outputs, columns = weight.shape
        gram = torch.zeros(columns + 1, columns + 1, dtype=torch.float64)
        return cls(gram, torch.zeros(columns + 1, outputs, dtype=torch.float64), 0.0, 0)

    @classmethod
    def of(
        cls, weight: Tensor, bias: Tensor, given: Sequence[Tensor], wanted: Sequence[Tensor]
    ) -> Equations:
        """Those of some batches: what the site is given [tokens, kept], and should return."""
        sums = cls.none(weight)
        gram, right, lost, tokens = sums.gram, sums.right, 0.0, 0
        for columns, outputs in zip(given, wanted, strict=True):
            kept = columns.shape[1]
            missing = outputs - columns @ weight[:, :kept].T
            lost += float((missing - bias).square().mean(dim=1).sum())
            tokens += len(columns)
            gram[:kept, :kept] += (columns.T @ columns).cpu()
            gram[:kept, -1] += columns.sum(dim=0).cpu()
            right[:kept] += (columns.T @ missing).cpu()
            right[-1] += missing.sum(dim=0).cpu()
        gram[-1, :-1] = gram[:-1, -1]
        gram[-1, -1] = tokens
        return cls(gram, right, lost, tokens)

    def plus(self, other: Equations, weight: float) -> Equations:
        """The sum of these and others that weigh so much."""
        return Equations(
            self.gram + weight * other.gram,
            self.right + weight * other.right,
            self.lost + weight * other.lost,
            self.tokens + other.tokens,
        )

    def solve(self, ridge: float, bias: Tensor) -> Tensor:
        """The change of the weight and, in the last row, the new bias [columns + 1, outputs]."""
        if math.isinf(ridge):
            unchanged = torch.zeros_like(self.right)
            unchanged[-1] = bias
            return unchanged
        gram = self.gram.clone()
        squares = gram.diagonal()[:-1]
        squares += squares.mean() * ridge or 1.0  # what no budget keeps has no squares: it stays
        solution: Tensor = torch.linalg.solve(gram, self.right)
        return solution

    def error(self, solution: Tensor) -> float:
        """The squares that are missing after the repair, but for what all solutions share."""
        return float((solution * (self.gram @ solution - 2.0 * self.right)).sum())
