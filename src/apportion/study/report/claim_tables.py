"""Records → verdicts: what the paper says in words, and whether it holds here."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from apportion.study.claims import Claim
from apportion.study.experiment import Experiment
from apportion.study.paper import PaperTable
from apportion.study.report.measures import MEASURES, BySeed, at_start, timed
from apportion.study.report.tables import Records, Table, asked, interval, mean_sd, processors

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested"
BY_CONSTRUCTION = "true by construction"
VERDICTS = (HOLDS, FAILS, UNTESTED, BY_CONSTRUCTION)
Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper beside what was measured."""

    claim: Claim
    verdict: str
    here: str
    test: str = "–"


def judge(claim: Claim, experiment: Experiment, records: Records) -> Verdict:
    """Whether a claim holds in the records of a study; part of the runs prove nothing."""
    if claim.untested:
        return Verdict(claim, UNTESTED, claim.untested)
    measure = MEASURES[claim.measure]
    own = measure(experiment, records, claim, claim.method, claim.form, claim.budget)
    missing = _missing(experiment, own, claim.method, claim.budget)
    pairs: Pairs = []
    if claim.against and not missing:
        where = (claim.against, claim.against_form, claim.against_budget)
        other = measure(experiment, records, claim, *where)
        missing = _missing(experiment, other, claim.against, claim.against_budget)
        pairs = [(own[seed], other[seed]) for seed in own if seed in other]
    if missing or (claim.against and not pairs):
        on = f" on {claim.device}" * (claim.device != "cpu")
        return Verdict(claim, UNTESTED, f"{missing or 'no seed has both'}{on}")
    if claim.measure == "speedup" and pairs and not _timed_together(claim, records):
        return Verdict(claim, UNTESTED, _apart(claim, records, pairs))
    if claim.statistic == "overlap" and len(pairs) < 2:
        return Verdict(claim, UNTESTED, "one seed has no spread")
    values = [mine - theirs for mine, theirs in pairs] or list(own.values())
    holds, here = _within(claim, values, pairs), _words(claim, values, pairs, records)
    if claim.cost_at_most is not None:
        costs = list(MEASURES["cost"](experiment, records, *_where(claim)).values())
        holds = holds and round(statistics.mean(costs), 3) <= claim.cost_at_most
        here += f", at cost {mean_sd(costs, 3)}"
    here += f" (n = {len(values)})"
    verdict, reason = HOLDS if holds else FAILS, claim.by_construction
    start = at_start(records, claim)
    if set(start) == set(own) and _within(claim, list(start.values()), []):
        reason = f"{_shown(claim, list(start.values()))} before any training"
    if holds and reason:  # one that fails has found a fault
        verdict, here = BY_CONSTRUCTION, f"{here}; {reason}"
    return Verdict(claim, verdict, here, _test(pairs))


def _where(claim: Claim) -> tuple[Claim, str, str, float]:
    return claim, claim.method, claim.form, claim.budget


def _missing(experiment: Experiment, own: BySeed, method: str, budget: float) -> str:
    """What is not there of the seeds that a study asks for, in words."""
    stages = [s for s in experiment.stages_of(method) if s.only in (None, budget)]
    asked_for = {(s.task.seed, s.seed) for s in stages or experiment.stages_of(method)}
    found = asked_for & set(own)
    if found == asked_for and asked_for:
        return ""
    return f"{method} was measured in {len(found)} of {len(asked_for)} runs"


def _within(claim: Claim, values: Sequence[float], pairs: Pairs) -> bool:
    """Whether the values, or pairs of them, are what a claim asks for.

    Compared as shown, so that nobody sees 0.30 fail against 0.30.
    """
    low, high = claim.at_least, claim.at_most
    if claim.statistic == "split":
        assert low is not None and high is not None
        ends = [round(value, _digits(claim)) for value in (max(values), min(values))]
        return ends[0] >= low and ends[1] <= high
    if claim.statistic == "overlap":
        value = overlap(pairs)
    else:
        value = min(values) if claim.statistic == "lowest" else statistics.mean(values)
    value = round(value, _digits(claim))
    return (low is None or value >= low) and (high is None or value <= high)


def overlap(pairs: Pairs) -> float:
    """How far two spreads, mean ± sample standard deviation, reach into each other."""
    mine, theirs = [one for one, _ in pairs], [other for _, other in pairs]
    apart = abs(statistics.mean(mine) - statistics.mean(theirs))
    return statistics.stdev(mine) + statistics.stdev(theirs) - apart


def _timed_together(claim: Claim, records: Records) -> bool:
    """Whether both sides of a claim on speed are arms of the same runs."""
    mine, theirs = _both_timed(claim, records)
    return {r["stage"] for r in mine} == {r["stage"] for r in theirs}


def _both_timed(claim: Claim, records: Records) -> tuple[Records, Records]:
    against = (claim.against, claim.against_form, claim.against_budget)
    return timed(records, *_where(claim)), timed(records, claim, *against)


def _apart(claim: Claim, records: Records, pairs: Pairs) -> str:
    """What is known of two speeds that can't be compared, as each run has noise of its own."""
    sides = []
    for values, found in zip(zip(*pairs, strict=True), _both_timed(claim, records), strict=True):
        macs = statistics.mean(r["bound"] for r in found)
        sides.append(f"{_shown(claim, values)} ({interval(found)}; by MACs {macs:.2f})")
    return f"timed in different runs: {' and '.join(sides)}"


def paired_test(pairs: Pairs) -> float | None:
    """The p-value of a paired t-test over seeds, where there are enough of them for one."""
    from scipy import stats  # slow to import

    differences = {round(mine - theirs, 6) for mine, theirs in pairs}
    if len(pairs) < 3 or len(differences) == 1:
        return None
    return float(stats.ttest_rel(*zip(*pairs, strict=True)).pvalue)


def _test(pairs: Pairs) -> str:
    p = paired_test(pairs)
    return "–" if p is None else f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def claim_table(table: PaperTable, experiment: Experiment, records: Records) -> Table:
    """The claims of one table of the paper with their verdicts."""
    found = [judge(claim, experiment, records) for claim in table.claims]
    return Table(
        "claims",
        "What the paper says of it",
        ("the paper says", "its numbers", "asked here", "here", "paired test", "verdict"),
        tuple(
            (v.claim.says, v.claim.paper, _asked(v.claim), v.here, v.test, v.verdict) for v in found
        ),
    )


HOW_JUDGED = (
    "A verdict is on means over seeds, unless it asks for the lowest, a split or an overlap. The "
    "test is a paired t-test over seeds, two-sided; with three seeds only a large and steady "
    "difference can reach 0.05. A speed stands with the widest of the seeds' 95 % intervals and "
    "its processor; two are compared only if one run timed both."
)
HOW_CONSTRUCTED = (
    "True by construction is what no result could contradict: it follows from what was set up, or "
    "gates had it before any training. It is not counted among what holds."
)


def count_verdicts(tables: Sequence[Table]) -> dict[str, int]:
    """How many claims hold, do not, were not tested, and could not fail."""
    verdicts = [row[-1] for table in tables for row in table.rows]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def _asked(claim: Claim) -> str:
    if claim.untested:
        return "–"
    text = f"{_WORDS.get(claim.measure, claim.measure)} of {_of(claim.method, claim.form, claim)}"
    if claim.against:
        sign = "and" if claim.statistic == "overlap" else "minus"
        text += f" {sign} {_of(claim.against, claim.against_form, claim, claim.against_budget)}"
    low, high = claim.at_least, claim.at_most
    if claim.statistic == "split":
        return f"{text}: some ≥ {low:g}, others ≤ {high:g}"
    if claim.statistic in ("lowest", "overlap"):
        text = f"{claim.statistic}{' of the spreads of' * (claim.statistic == 'overlap')} {text}"
    if low is not None and low == high:
        text += f" = {low:g}"
    else:
        ends = [f"{sign} {end:g}" for sign, end in (("≥", low), ("≤", high)) if end is not None]
        text += f" {' and '.join(ends)}"
    return text + (f", at cost ≤ {claim.cost_at_most:g}" if claim.cost_at_most is not None else "")


def _of(method: str, form: str, claim: Claim, budget: float | None = None) -> str:
    if claim.measure in _OF_THE_WHOLE or form == "dense":
        return method
    on = f" on {claim.device}" * (claim.device != "cpu")
    return f"{method} {form} at {asked(claim.budget if budget is None else budget)}{on}"


def _words(claim: Claim, values: Sequence[float], pairs: Pairs, records: Records) -> str:
    """What was measured, as people read it."""
    if pairs:
        mine, theirs = zip(*pairs, strict=True)
        text = f"{_shown(claim, mine)} against {_shown(claim, theirs)}: {_signed(claim, values)}"
    else:
        text = _shown(claim, values)
    digits = _digits(claim)
    if claim.measure == "speedup":
        found = timed(records, *_where(claim))
        text += f" ({interval(found)}), {processors(found)}"
    if claim.statistic == "overlap":
        reach = overlap(pairs)
        text += (
            f", an overlap of {reach:.{digits}f}" if reach >= 0 else f", {-reach:.{digits}f} apart"
        )
    if claim.statistic in ("lowest", "split") and len(values) > 1 and claim.measure != "monotone":
        text += f", lowest {min(values):.{digits}f}"
    if claim.statistic == "split":
        text += f", highest {max(values):.{digits}f}"
    return text


def _shown(claim: Claim, values: Sequence[float]) -> str:
    if claim.measure == "monotone":
        return f"{sum(value == 1.0 for value in values)} of {len(values)}"
    return mean_sd(values, _digits(claim))


def _signed(claim: Claim, values: Sequence[float]) -> str:
    return ("+" if statistics.mean(values) >= 0 else "") + mean_sd(values, _digits(claim))


def _digits(claim: Claim) -> int:
    digits = {"cost": 3, "jobs": 0, "monotone": 0, "fewest": 0, "size": 1, "minutes": 1}
    return digits.get(claim.measure, 2)


_OF_THE_WHOLE = ("monotone", "spearman", "retention", "jobs", "minutes", "size")
_WORDS = {
    "speedup": "speed-up",
    "monotone": "monotone cost",
    "spearman": "Spearman's correlation of gates at 0.25 and 0.75",
    "retention": "% of the heads kept at 0.25 that 0.75 keeps",
    "parameters": "% of all parameters taken away",
    "head_parameters": "% of head parameters taken away",
    "attention_macs": "% of attention MACs taken away",
    "layer_macs": "% of layer MACs taken away",
    "jobs": "fine-tune jobs",
    "minutes": "minutes of training",
    "fewest": "heads of the emptiest layer",
    "size": "millions of parameters",
}
