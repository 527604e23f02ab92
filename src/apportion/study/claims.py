"""Claims: what a paper says in words, and what would have to be measured for it, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Measure = Literal[
    "accuracy",
    "cost",
    "speedup",
    "monotone",
    "spearman",
    "retention",
    "parameters",
    "head_parameters",
    "attention_macs",
    "layer_macs",
    "jobs",
    "minutes",
    "fewest",
    "size",
]


@dataclass(frozen=True)
class Claim:
    """Something that the paper says in words, and what would have to be measured for it to hold.

    A statistic over seeds, of a measure or of its difference from another, that lies between two
    numbers:

    - `mean`, or `lowest`;
    - `split`: some seeds reach `at_least` while others stay at `at_most`, so that a setting in
      which all learn, or none does, is not called unstable;
    - `overlap`: by how much the two spreads, mean ± sample standard deviation, overlap; below 0
      there is a gap between them.

    Accuracies, retention and what a cut takes away are in percent, sizes in millions of parameters;
    `fewest` are the heads of the layer that keeps the fewest, `minutes` those of all trainings that
    a model took.
    """

    says: str
    paper: str  # the numbers that it rests on, as printed
    untested: str = ""  # why it can't be tested here; then nothing below is needed
    by_construction: str = (
        ""  # why no result could contradict it; it never counts as one that holds
    )
    measure: Measure = "accuracy"
    method: str = ""
    form: str = "hard"
    budget: float = 1.0
    statistic: Literal["mean", "lowest", "split", "overlap"] = "mean"
    device: str = "cpu"  # where speed was measured
    against: str = ""  # a method; the same one as `method` if only form or budget differ
    against_form: str = "dense"
    against_budget: float = 1.0
    at_least: float | None = None
    at_most: float | None = None
    cost_at_most: float | None = None  # of an accuracy that is claimed at a cost


def check_claim(claim: Claim, where: str) -> Claim:
    """The claim, if it can be judged; `where` says whose it is."""
    if claim.untested:
        return claim
    if not claim.method or (claim.at_least is None and claim.at_most is None):
        raise ValueError(
            f"a claim of {where} needs a method and at_least or at_most, or to say why it is "
            f"untested: {claim.says}"
        )
    if claim.statistic == "split" and (claim.at_least is None or claim.at_most is None):
        raise ValueError(f"a claim of {where} needs at_least and at_most to split: {claim.says}")
    if claim.statistic == "split" and claim.against:
        raise ValueError(f"a claim of {where} splits one method, not a difference: {claim.says}")
    if claim.statistic == "overlap" and not claim.against:
        raise ValueError(f"a claim of {where} needs against for an overlap: {claim.says}")
    if claim.cost_at_most is not None and claim.measure != "accuracy":
        raise ValueError(f"a claim of {where} has cost_at_most without accuracy: {claim.says}")
    return claim
