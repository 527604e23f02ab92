"""Searching: which units a budget keeps, by how far the answers move when the others are off.

Scores are of single units, and divergences do not add. So what a small budget keeps is measured
together: from the smallest budget up, units move between sites for as long as that brings the
answers nearer to the whole model's. What a smaller budget keeps, a larger one keeps too; inside a
site, units stay in the order of their scores. Texts alone are needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.data.task import Split
from apportion.elastic.elastic import Elastic, logits_of
from apportion.elastic.pairing import check_all_tokens
from apportion.method.units import Allocation
from apportion.models.surgery import view

_ROUNDS = {0.125: 24, 0.25: 16, 0.5: 8}  # of moving units, at each of some budgets
_CHILDREN = 8  # in each round
_PROMISING = 3  # of them
_ROWS, _BATCH = 128, 32  # children are measured on one batch, promising ones on all

Counts = tuple[int, ...]  # units that each site keeps


@torch.no_grad()
def search(
    model: Elastic,
    split: Split,
    *,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Elastic, dict[str, Any]]:
    """A nested model in the order that a search on rows of a split found, and what that took.

    The given one is nested too, its units in each site in the order of their scores; it is left
    alone. Labels are not used. With `seconds`, it ends when they are over, and what it finds
    depends on the machine.
    """
    check_seconds(seconds)
    check_all_tokens(model, "searched")
    started = time.perf_counter()
    run = _Search(model, split.take(torch.arange(len(split))[:_ROWS]), seed, progress)
    found = run.order(math.inf if seconds is None else seconds)
    facts = {
        "search_rows": run.rows,
        "search_passes": round(run.passes),  # of a row through the whole model
        "search_kept": {str(budget): list(counts) for budget, counts in run.at.items()},
        "search_seconds": round(time.perf_counter() - started, 1),
    }
    return found, facts


def check_seconds(seconds: float | None) -> None:
    """Complains of a time that nothing can be done in."""
    if seconds is not None and not 0.0 < seconds < math.inf:
        raise ValueError(f"seconds are a number above 0, not {seconds!r}")


class _Search:
    """One search: divergences that were measured, and what each budget keeps so far."""

    def __init__(
        self,
        model: Elastic,
        split: Split,
        seed: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.model, self.units, self.progress = model, model.units, progress
        self.whole = model.served().eval()
        self.criterion = split.criterion
        self.random = np.random.default_rng(seed)
        spans = self.units.spans.values()
        self.every: Counts = tuple(span.stop - span.start for span in spans)
        self.shares = [float(self.units.shares[span.start]) for span in spans]  # of one unit
        device = model.gates.a.device
        batches = [
            {name: values.to(device) for name, values in inputs.items()}
            for inputs, _ in split.batches(_BATCH)
        ]
        # Batches are of like lengths: in another order, the first of them are not all short.
        self.batches = [batches[n] for n in self.random.permutation(len(batches))]
        self.rows = len(split)
        self.answers = [logits_of(self.whole(**inputs)) for inputs in self.batches]
        self.at: dict[float, Counts] = {}
        self.passes = 0.0
        self._measured: dict[tuple[Counts, int], tuple[float, int]] = {}
        self._done = 0

    def order(self, seconds: float) -> Elastic:
        """The model in the order of the search; each budget has the same share of the time."""
        lower: Counts = (0,) * len(self.every)
        started, share = time.monotonic(), seconds / len(_ROUNDS)
        for number, (budget, rounds) in enumerate(_ROUNDS.items(), start=1):
            best = self._fit(self._counts(self.model.allocation(budget)), budget, lower)
            for _ in range(rounds):
                if time.monotonic() - started < number * share:
                    best = self._improve(best, budget, lower)
                self._tell()
            self.at[budget] = lower = best
        return self.model.nested(self._scores())

    def cost(self, counts: Sequence[int]) -> float:
        return sum(count * share for count, share in zip(counts, self.shares, strict=True))

    def apart(self, counts: Counts, batches: int | None = None) -> float:
        """The mean divergence from the whole model on the first batches, or on all of them."""
        numbers = range(len(self.batches) if batches is None else min(batches, len(self.batches)))
        todo = [number for number in numbers if (counts, number) not in self._measured]
        if todo:
            model = view(self.whole, self._allocation(counts)).eval()
            for number in todo:
                logits, wanted = logits_of(model(**self.batches[number])), self.answers[number]
                divergence = float(self.criterion.divergence(logits, wanted))
                self._measured[counts, number] = divergence * len(wanted), len(wanted)
                self.passes += self.cost(counts) * len(wanted)
        measured = [self._measured[counts, number] for number in numbers]
        return sum(apart for apart, _ in measured) / sum(rows for _, rows in measured)

    def _fit(self, counts: Counts, budget: float, lower: Counts) -> Counts:
        """Counts that a budget just pays for, at least the lower ones: units go or come by chance.

        Those that come fill up what room there is.
        """
        counts = tuple(map(max, counts, lower))
        while self.cost(counts) > budget:
            spare = [site for site in range(len(counts)) if counts[site] > lower[site]]
            if not spare:
                break
            counts = _changed(counts, int(self.random.choice(spare)), -1)
        while room := self._room(counts, budget):
            counts = _changed(counts, int(self.random.choice(room)), 1)
        return counts

    def _room(self, counts: Counts, budget: float) -> list[int]:
        """Sites that have a unit of which the budget still pays half, as `allocate` buys."""
        cost = self.cost(counts)
        return [
            site
            for site, share in enumerate(self.shares)
            if counts[site] < self.every[site] and cost + share / 2 <= budget
        ]

    def _improve(self, best: Counts, budget: float, lower: Counts) -> Counts:
        """The best of some neighbours, measured first on few rows, and of what there was."""
        children = {self._neighbour(best, budget, lower) for _ in range(_CHILDREN)} - {best}
        promising = sorted(children, key=lambda child: self.apart(child, 1))[:_PROMISING]
        return min([best, *promising], key=self.apart)

    def _neighbour(self, counts: Counts, budget: float, lower: Counts) -> Counts:
        """Some units leave some sites, and others come where the budget has room for them."""
        for _ in range(int(self.random.integers(1, 4))):
            spare = [site for site in range(len(counts)) if counts[site] > lower[site]]
            if not spare:
                break
            site = int(self.random.choice(spare))
            gone = min(counts[site] - lower[site], int(self.random.integers(1, 4)))
            if self.random.random() < 1 / 8:  # now and then all of it
                gone = counts[site] - lower[site]
            counts = _changed(counts, site, -gone)
        return self._fit(counts, budget, lower)

    def _scores(self) -> Tensor:
        """Scores by which units are bought as was found: first those of the smallest budget."""
        order = self.model.gates.order
        assert order is not None
        place = order.cpu().argsort()  # inside a level, the order that was given
        level = torch.full((len(self.units),), len(self.at))
        for number, counts in reversed(list(enumerate(self.at.values()))):
            level[torch.tensor(self._allocation(counts).kept)] = number
        order = (level * len(place) + place).argsort()
        scores = torch.empty(len(order), dtype=torch.float64)
        scores[order] = torch.arange(len(order), 0, -1, dtype=torch.float64)
        return scores * self.units.shares  # bought by score per cost

    def _counts(self, kept: Allocation) -> Counts:
        return tuple(sum(kept.kept[span]) for span in self.units.spans.values())

    def _allocation(self, counts: Counts) -> Allocation:
        spans = zip(self.units.spans.values(), counts, strict=True)
        return Allocation.of(
            self.units, (span.start + n for span, count in spans for n in range(count))
        )

    def _tell(self) -> None:
        self._done += 1
        if self.progress:
            self.progress(self._done, sum(_ROUNDS.values()))


def _changed(counts: Counts, site: int, by: int) -> Counts:
    return (*counts[:site], counts[site] + by, *counts[site + 1 :])
