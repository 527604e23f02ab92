"""Records → verdicts: what the paper says, or a study sets out to reach, and whether it holds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from apportion.study.claims import Claim
from apportion.study.experiment import Experiment
from apportion.study.paper import PaperTable
from apportion.study.report.measures import MEASURES, Side, at_start, sides_of
from apportion.study.report.paired import HOW_PAIRED, NONE_KEPT, WORDS, Difference, Kept, pair
from apportion.study.report.query import BY_MACS, Records, asked, interval, mean_sd, processors
from apportion.study.report.table import Table

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested"
BY_CONSTRUCTION = "true by construction"
VERDICTS = (HOLDS, FAILS, UNTESTED, BY_CONSTRUCTION)
Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Verdict:
    """A claim beside what was measured."""

    claim: Claim
    verdict: str
    here: str
    interval: str = "–"  # of the mean over seeds, 95 %
    test: str = "–"


def judge(
    claim: Claim, experiment: Experiment, records: Records, *, answers: Kept = NONE_KEPT
) -> Verdict:
    """Whether a claim holds in the records of a study; part of the runs prove nothing.

    It is judged by the mean over seeds. A difference of accuracies that has to hold `surely` is
    judged by the rows of both sides: all of its interval has to lie within the claim's bounds.
    """
    if claim.untested:
        return Verdict(claim, UNTESTED, claim.untested)
    own, other = sides_of(claim, experiment, records)
    mine = own.by_seed()
    missing = own.missing(mine)
    pairs: Pairs = []
    if claim.against and not missing:
        theirs = other.by_seed()
        missing = other.missing(theirs)
        pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    if missing or (claim.against and not pairs):
        on = f" on {claim.device}" * (claim.device != "cpu")
        return Verdict(claim, UNTESTED, f"{missing or 'no seed has both'}{on}")
    if claim.measure == "speedup" and pairs and not _timed_together(own, other):
        return Verdict(claim, UNTESTED, _apart(own, other, pairs))
    if claim.statistic == "overlap" and len(pairs) < 2:
        return Verdict(claim, UNTESTED, "one seed has no spread")
    values = [_compared(claim, *pair) for pair in pairs] or list(mine.values())
    holds, here = _within(claim, values, pairs), _words(own, other, values, pairs)
    by_rows = _by_rows(own, other, answers)
    if claim.surely and by_rows is None:
        return Verdict(claim, UNTESTED, "the answers to its rows were not kept")
    if by_rows is not None:
        holds = holds and (_all_within(claim, by_rows) or not claim.surely)
        here += f", by seed {by_rows.seeds}" * bool(by_rows.seeds)
    if claim.cost_at_most is not None:
        costs = list(MEASURES["cost"].by_seed(own).values())
        holds = holds and round(statistics.mean(costs), 3) <= claim.cost_at_most
        here += f", at cost {mean_sd(costs, 3)}"
    here += f" (n = {len(values)})"
    verdict, reason = HOLDS if holds else FAILS, claim.by_construction
    start = at_start(own)
    if set(start) == set(mine) and _within(claim, list(start.values()), []):
        reason = f"{_shown(claim, list(start.values()))} before any training"
    if holds and reason:  # one that fails has found a fault
        verdict, here = BY_CONSTRUCTION, f"{here}; {reason}"
    if by_rows is not None:
        return Verdict(claim, verdict, here, by_rows.interval, by_rows.word)
    return Verdict(claim, verdict, here, _interval_shown(claim, values), _test_shown(pairs))


def _by_rows(own: Side, other: Side, answers: Kept) -> Difference | None:
    """The difference that a claim is of, row by row, if it is one of accuracies and can be had."""
    claim = own.claim
    if not claim.against or claim.ratio or (claim.measure, claim.statistic) != ("accuracy", "mean"):
        return None
    mine, theirs = ([s.compared_points() for s in side.at_each_budget()] for side in (own, other))
    found = pair(mine, theirs, answers=answers)
    return None if found is None else found.difference()


def _all_within(claim: Claim, difference: Difference) -> bool:
    low, high = claim.at_least, claim.at_most
    return (low is None or difference.low >= low) and (high is None or difference.high <= high)


def _compared(claim: Claim, mine: float, theirs: float) -> float:
    return mine / theirs if claim.ratio else mine - theirs


def _within(claim: Claim, values: Sequence[float], pairs: Pairs) -> bool:
    """Whether the values, or pairs of them, are what a claim asks for.

    Compared as shown, so that nobody sees 0.30 fail against 0.30.
    """
    low, high, digits = claim.at_least, claim.at_most, _digits(claim)
    lowest, highest = round(min(values), digits), round(max(values), digits)
    if claim.every_above is not None and not lowest > claim.every_above:
        return False
    if claim.statistic == "split":
        assert low is not None and high is not None
        return highest >= low and lowest <= high
    if claim.statistic == "overlap":
        value = round(overlap(pairs), digits)
    else:
        mean = round(statistics.mean(values), digits)
        value = {"lowest": lowest, "highest": highest, "mean": mean}[claim.statistic]
    return (low is None or value >= low) and (high is None or value <= high)


def overlap(pairs: Pairs) -> float:
    """How far two spreads, mean ± sample standard deviation, reach into each other."""
    mine, theirs = [one for one, _ in pairs], [other for _, other in pairs]
    apart = abs(statistics.mean(mine) - statistics.mean(theirs))
    return statistics.stdev(mine) + statistics.stdev(theirs) - apart


def _timed_together(own: Side, other: Side) -> bool:
    """Whether both sides of a claim on speed are arms of the same runs."""
    return {r["stage"] for r in own.timed()} == {r["stage"] for r in other.timed()}


def _apart(own: Side, other: Side, pairs: Pairs) -> str:
    """What is known of two speeds that can't be compared, as each run has noise of its own."""
    sides = []
    for values, side in zip(zip(*pairs, strict=True), (own, other), strict=True):
        macs = statistics.mean(r["bound"] for r in side.timed())
        sides.append(f"{_shown(own.claim, values)} ({interval(side.timed())}; by MACs {macs:.2f})")
    return f"timed in different runs: {' and '.join(sides)}"


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a mean over seeds by Student's t, where seeds differ."""
    from scipy import stats  # slow to import

    if len(values) < 2 or len(set(values)) == 1:
        return None
    reach = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / sqrt(len(values))
    return statistics.mean(values) - reach, statistics.mean(values) + reach


def _interval_shown(claim: Claim, values: Sequence[float]) -> str:
    ends = interval_of_mean(values) if claim.statistic == "mean" else None
    if ends is None:
        return "–"
    sign = "+" * bool(claim.against and not claim.ratio)
    return " to ".join(f"{end:{sign}.{_digits(claim)}f}" for end in ends)


def paired_test(pairs: Pairs) -> float | None:
    """The p-value of a paired t-test over seeds, where there are enough of them for one."""
    from scipy import stats  # slow to import

    differences = {round(mine - theirs, 6) for mine, theirs in pairs}
    if len(pairs) < 3 or len(differences) == 1:
        return None
    return float(stats.ttest_rel(*zip(*pairs, strict=True)).pvalue)


def _test_shown(pairs: Pairs) -> str:
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


_MET = {HOLDS: "yes", FAILS: "no", UNTESTED: "not yet", BY_CONSTRUCTION: BY_CONSTRUCTION}


def goal_table(experiment: Experiment, records: Records, *, answers: Kept = NONE_KEPT) -> Table:
    """The claims of a study itself, its goals, with what was reached."""
    found = [judge(claim, experiment, records, answers=answers) for claim in experiment.claims]
    note = f"{HOW_JUDGED} The interval is of the mean over seeds, by Student's t."
    note += f" {_HOW_JUDGED_BY_ROWS} {HOW_PAIRED}" * any(v.test in WORDS for v in found)
    note += f" {BY_MACS}" * any(claim.measure == "share_by_macs" for claim in experiment.claims)
    return Table(
        "goals",
        "Goals",
        ("goal", "asked", "reached", "95 % interval", "paired test", "met"),
        tuple(
            (v.claim.says, _asked(v.claim), v.here, v.interval, v.test, _MET[v.verdict])
            for v in found
        ),
        note,
    )


HOW_JUDGED = (
    "A verdict is on means over seeds, unless it asks for the lowest or highest, a split or an "
    "overlap. The test is a paired t-test over seeds, two-sided; with three seeds only a large and "
    "steady difference can reach 0.05. A speed stands with the widest of the seeds' 95 % intervals "
    "and its processor; two are compared only if one run timed both."
)
_HOW_JUDGED_BY_ROWS = (
    "Where the answers to all rows are known, the interval of a difference is theirs, and a word "
    "stands in place of the test. Where “surely” is asked, all of that interval has to lie within "
    "the bounds, and not the mean alone."
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
    text = f"{MEASURES[claim.measure].words} of "
    text += _side_shown(claim, claim.method, claim.form, claim.budget)
    if claim.against:
        sign = "and" if claim.statistic == "overlap" else "over" if claim.ratio else "minus"
        other = _side_shown(claim, claim.against, claim.against_form, claim.against_budget)
        text += f" {sign} {other}"
    low, high = claim.at_least, claim.at_most
    if claim.statistic == "split":
        return f"{text}: some ≥ {low:g}, others ≤ {high:g}"
    if claim.statistic != "mean":
        text = f"{claim.statistic}{' of the spreads of' * (claim.statistic == 'overlap')} {text}"
    bounds = [f"{sign} {end:g}" for sign, end in (("≥", low), ("≤", high)) if end is not None]
    if low is not None and low == high:
        bounds = [f"= {low:g}"]
    text += f"{' surely' * claim.surely} {' and '.join(bounds)}" * bool(bounds)
    if claim.every_above is not None:
        text += f", every seed > {claim.every_above:g}"
    return text + (f", at cost ≤ {claim.cost_at_most:g}" if claim.cost_at_most is not None else "")


def _side_shown(claim: Claim, method: str, form: str, budget: float) -> str:
    if MEASURES[claim.measure].of_whole or form == "dense":
        return method
    at = f"at {asked(budget)}" if not claim.over else f"on average over {len(claim.over)} budgets"
    on = f" on {claim.device}" * (claim.device != "cpu")
    return f"{method} {form} {at}{f', {claim.protocol}' * (claim.protocol != 'padded')}{on}"


def _words(own: Side, other: Side, values: Sequence[float], pairs: Pairs) -> str:
    """What was measured, as people read it."""
    claim, digits = own.claim, _digits(own.claim)
    if pairs:
        mine, theirs = zip(*pairs, strict=True)
        sign = "+" * (statistics.mean(values) >= 0 and not claim.ratio)
        text = f"{_shown(claim, mine)}{_timed_within(own)} against {_shown(claim, theirs)}"
        text += f"{_timed_within(other)}: {sign}{mean_sd(values, digits)}"
    else:
        text = _shown(claim, values) + _timed_within(own)
    if claim.measure in _SPEEDS:
        text += f", {processors(own.timed())}"
    if claim.statistic == "overlap":
        reach = overlap(pairs)
        text += (
            f", an overlap of {reach:.{digits}f}" if reach >= 0 else f", {-reach:.{digits}f} apart"
        )
    several = len(values) > 1 and claim.measure != "monotone"
    if several and (claim.statistic in ("lowest", "split") or claim.every_above is not None):
        text += f", lowest {min(values):.{digits}f}"
    if several and claim.statistic in ("highest", "split"):
        text += f", highest {max(values):.{digits}f}"
    return text


_SPEEDS = ("speedup", "share_by_macs")


def _timed_within(side: Side) -> str:
    """The interval of a measured speed, in the unit of the claim."""
    if side.claim.measure not in _SPEEDS:
        return ""
    scaled = side.claim.measure == "share_by_macs"
    ends = [
        {end: 100 * r[end] / r["bound"] if scaled else r[end] for end in ("low", "high")}
        for r in side.timed()
    ]
    return f" ({interval(ends)})"


def _shown(claim: Claim, values: Sequence[float]) -> str:
    if claim.measure == "monotone":
        return f"{sum(value == 1.0 for value in values)} of {len(values)}"
    return mean_sd(values, MEASURES[claim.measure].digits)


def _digits(claim: Claim) -> int:
    """To how many digits what a claim is judged by is shown, and so compared."""
    return 3 if claim.ratio else MEASURES[claim.measure].digits
