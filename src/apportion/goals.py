"""Goals: what an experiment sets out to reach, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Goal:
    """What an experiment sets out to reach; accuracies in percent."""

    name: str
    method: str
    form: str = "soft"
    budget: float = 1.0
    mean_accuracy: float | None = None  # at least
    every_accuracy: float | None = None  # each seed above
    cost: float | None = None  # at most
    against: str | None = None  # a method to compare with, seed by seed
    against_form: str = "dense"
    against_budget: float = 1.0
    within: float = 0.0  # points that it may be below that method
    share_of_bound: float | None = None  # measured speed-up over the bound, at least
    share_of_cut: float | None = None  # measured speed-up over that of the cut model, at least
    protocol: Literal["padded", "grouped"] | None = None  # of the timing of texts
    throughput: float | None = None  # of predictions, as a share of the bare model's, at least
    monotone: bool = False

    def asks(self) -> str:
        """The goal in words."""
        parts = []
        if self.mean_accuracy is not None:
            parts.append(f"mean ≥ {self.mean_accuracy:g} %")
        if self.every_accuracy is not None:
            parts.append(f"every seed > {self.every_accuracy:g} %")
        if self.against is not None:
            above = f"≥ {self.against}" + (f" {self.against_form}" * (self.against_form != "dense"))
            parts.append(above + (f" - {self.within:g}" if self.within else ""))
        if self.cost is not None:
            parts.append(f"cost ≤ {self.cost:g}")
        if self.share_of_bound is not None:
            parts.append(f"≥ {100 * self.share_of_bound:g} % of the bound by MACs")
        if self.share_of_cut is not None:
            parts.append(f"≥ {100 * self.share_of_cut:g} % of the cut model's speed")
        if self.throughput is not None:
            parts.append(f"≥ {100 * self.throughput:g} % of the bare model's rows a second")
        if self.monotone:
            parts.append("monotone for every seed")
        return ", ".join(parts)
