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
    share_of_bound: float | None = None  # measured speed-up over the one by MACs, at least
    share_of_cut: float | None = None  # measured speed-up over that of the cut model, at least
    protocol: Literal["padded", "grouped"] | None = None  # of the timing of texts
    throughput: float | None = None  # of predictions, as a share of the bare model's, at least
    monotone: bool = False
    over: tuple[float, ...] = ()  # budgets, of which the difference to that method is the average
    speedup: float | None = None  # measured, at least
    switch_us: float | None = None  # microseconds to another budget, at most
    memory: float | None = None  # of all timed budgets over the dense model, as a share, at most
    training: float | None = None  # seconds of training, in those of that method, at most

    @property
    def is_of_time(self) -> bool:
        """Whether it asks for the speed of a model at a budget."""
        return any(v is not None for v in (self.share_of_bound, self.share_of_cut, self.speedup))

    @property
    def is_of_switching(self) -> bool:
        """Whether it asks what another budget takes, in time or in memory."""
        return self.switch_us is not None or self.memory is not None

    def asks(self) -> str:
        """The goal in words."""
        parts = []
        if self.mean_accuracy is not None:
            parts.append(f"mean ≥ {self.mean_accuracy:g} %")
        if self.every_accuracy is not None:
            parts.append(f"every seed > {self.every_accuracy:g} %")
        if self.training is not None:
            parts.append(f"trains at most {self.training:g}x as long as {self.against}")
        elif self.against is not None:
            above = f"≥ {self.against}" + (f" {self.against_form}" * (self.against_form != "dense"))
            sign = "-" if self.within > 0 else "+"
            parts.append(above + (f" {sign} {abs(self.within):g}" if self.within else ""))
        if self.over:
            parts.append(f"on average over {len(self.over)} budgets")
        if self.speedup is not None:
            parts.append(f"≥ {self.speedup:g}x")
        if self.switch_us is not None:
            parts.append(f"≤ {self.switch_us:g} µs, no weight copied")
        if self.memory is not None:
            parts.append(f"≤ {100 * self.memory:g} % over the dense model")
        if self.cost is not None:
            parts.append(f"cost ≤ {self.cost:g}")
        if self.share_of_bound is not None:
            parts.append(f"≥ {100 * self.share_of_bound:g} % of the speed-up by MACs")
        if self.share_of_cut is not None:
            parts.append(f"≥ {100 * self.share_of_cut:g} % of the cut model's speed")
        if self.throughput is not None:
            parts.append(f"≥ {100 * self.throughput:g} % of the bare model's rows a second")
        if self.monotone:
            parts.append("monotone for every seed")
        return ", ".join(parts)
