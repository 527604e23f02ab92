"""Claims: what a paper says, or what a study sets out to reach, as values that records decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Measure = Literal[
    "accuracy",
    "cost",
    "speedup",
    "share_by_macs",
    "throughput",
    "switch_us",
    "copied_bytes",
    "memory",
    "monotone",
    "spearman",
    "retention",
    "parameters",
    "head_parameters",
    "attention_macs",
    "layer_macs",
    "jobs",
    "minutes",
    "training_seconds",
    "fewest",
    "size",
]
# Of a stage that is timed.
TIMED: tuple[Measure, ...] = (
    "speedup",
    "share_by_macs",
    "throughput",
    "switch_us",
    "copied_bytes",
    "memory",
)


@dataclass(frozen=True)
class Claim:
    """A sentence, and what would have to be measured for it to hold.

    A statistic over seeds, of a measure or of how it compares with another, that lies between two
    numbers:

    - `mean`, `lowest` or `highest`;
    - `split`: some seeds reach `at_least` while others stay at `at_most`, so that a setting in
      which all learn, or none does, is not called unstable;
    - `overlap`: by how much the two spreads, mean ± sample standard deviation, overlap; below 0
      there is a gap between them.

    Accuracies, shares and what a cut takes away are in percent, sizes in millions of parameters;
    `fewest` are the heads of the layer that keeps the fewest, `minutes` those of all trainings that
    a model took, `training_seconds` those of the last one.
    """

    says: str
    paper: str = "–"  # the numbers that it rests on, as the paper prints them
    untested: str = ""  # why it can't be tested here; then nothing below is needed
    by_construction: str = (
        ""  # why no result could contradict it; it never counts as one that holds
    )
    measure: Measure = "accuracy"
    method: str = ""
    form: str = "hard"
    budget: float = 1.0
    over: tuple[float, ...] = ()  # budgets to average over, in place of one
    statistic: Literal["mean", "lowest", "highest", "split", "overlap"] = "mean"
    device: str = "cpu"  # where speed was measured,
    protocol: Literal["padded", "grouped"] = "padded"  # and how texts were batched for it
    against: str = ""  # a method; the same one as `method` if only form or budget differ
    against_form: str = "dense"
    against_budget: float = 1.0
    ratio: bool = False  # to that method's measure, in place of the difference
    at_least: float | None = None
    at_most: float | None = None
    every_above: float | None = None  # that each seed has to pass, whatever the statistic
    cost_at_most: float | None = None  # of an accuracy that is claimed at a cost
    surely: bool = False  # all of a difference's interval by rows, and not its mean alone


def check_claim(claim: Claim, where: str) -> Claim:
    """The claim, if it can be judged; `where` says whose it is."""
    if claim.untested:
        return claim
    bounds = (claim.at_least, claim.at_most, claim.every_above)
    if not claim.method or all(bound is None for bound in bounds):
        raise ValueError(
            f"a claim of {where} needs a method and at_least or at_most or every_above, or to "
            f"say why it is untested: {claim.says}"
        )
    if claim.ratio and not claim.against:
        raise ValueError(f"a claim of {where} names nothing to compare with: {claim.says}")
    if claim.statistic == "split" and (claim.at_least is None or claim.at_most is None):
        raise ValueError(f"a claim of {where} needs at_least and at_most to split: {claim.says}")
    if claim.statistic == "split" and claim.against:
        raise ValueError(f"a claim of {where} splits one method, not a difference: {claim.says}")
    if claim.statistic == "overlap" and not claim.against:
        raise ValueError(f"a claim of {where} needs against for an overlap: {claim.says}")
    if claim.cost_at_most is not None and claim.measure != "accuracy":
        raise ValueError(f"a claim of {where} has cost_at_most without accuracy: {claim.says}")
    if claim.surely and (not claim.against or claim.measure != "accuracy" or claim.ratio):
        raise ValueError(
            f"a claim of {where} asks for all of an interval (surely), and is no difference of "
            f"accuracies: {claim.says}"
        )
    return claim
