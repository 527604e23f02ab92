"""Records → verdicts: what the paper says in words, and whether it holds here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.experiment import Experiment
from apportion.report.gates import agreement_by_seed, retention_by_seed
from apportion.report.study import jobs_of
from apportion.report.tables import Records, Table, asked, mean_sd, points_at, select, timings
from apportion.reproduction import Claim, PaperTable

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested"
BySeed = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper beside what was measured."""

    claim: Claim
    verdict: str
    here: str
    test: str = "–"


def judge(claim: Claim, experiment: Experiment, records: Records) -> Verdict:
    """Whether a claim holds in the records of a study."""
    if claim.untested:
        return Verdict(claim, UNTESTED, claim.untested)
    measure = _MEASURES[claim.measure]
    own = measure(experiment, records, claim.method, claim.form, claim.budget)
    if not own:
        return Verdict(claim, UNTESTED, f"{claim.method} was not measured")
    values, test = list(own.values()), "–"
    here = _shown(claim, values)
    if claim.against:
        other = measure(
            experiment, records, claim.against, claim.against_form, claim.against_budget
        )
        pairs = [(own[seed], other[seed]) for seed in own if seed in other]
        if not pairs:
            return Verdict(claim, UNTESTED, f"{claim.against} was not measured")
        values = [mine - against for mine, against in pairs]
        theirs = _shown(claim, [against for _, against in pairs])
        here += f" against {theirs}: {_signed(claim, values)}"
        test = paired_test(pairs)
    value = statistics.mean(values) if claim.statistic == "mean" else min(values)
    if claim.statistic == "lowest" and len(values) > 1 and claim.measure != "monotone":
        here += f", lowest {value:.{_digits(claim)}f}"
    # Compared as shown, so that nobody sees 0.30 fail against 0.30.
    value = round(value, _digits(claim))
    holds = (claim.at_least is None or value >= claim.at_least) and (
        claim.at_most is None or value <= claim.at_most
    )
    return Verdict(claim, HOLDS if holds else FAILS, f"{here} (n = {len(values)})", test)


def paired_test(pairs: Sequence[tuple[float, float]]) -> str:
    """The p-value of a paired t-test, where there are enough seeds for one."""
    from scipy import stats  # slow to import

    differences = [mine - theirs for mine, theirs in pairs]
    if len(pairs) < 3 or len({round(difference, 6) for difference in differences}) == 1:
        return "–"
    p = float(stats.ttest_rel(*zip(*pairs, strict=True)).pvalue)
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


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
    "A verdict is on means over seeds. The test is a paired t-test over seeds, two-sided; with "
    "three seeds only a large and steady difference can reach 0.05."
)


def count_verdicts(tables: Sequence[Table]) -> dict[str, int]:
    """How many claims hold, do not, and were not tested."""
    verdicts = [row[-1] for table in tables for row in table.rows]
    return {verdict: verdicts.count(verdict) for verdict in (HOLDS, FAILS, UNTESTED)}


def _asked(claim: Claim) -> str:
    if claim.untested:
        return "–"
    what = _WORDS.get(claim.measure, claim.measure)
    where = f" {claim.form} at {asked(claim.budget)}" if claim.form != "dense" else ""
    if claim.measure in ("monotone", "spearman", "retention", "jobs"):
        where = ""
    text = f"{'lowest ' * (claim.statistic == 'lowest')}{what} of {claim.method}{where}"
    if claim.against:
        at = f" {claim.against_form} at {asked(claim.against_budget)}"
        text += f" minus {claim.against}{at * (claim.against_form != 'dense')}"
    low, high = claim.at_least, claim.at_most
    if low is not None and low == high:
        return f"{text} = {low:g}"
    limits = [f"{sign} {limit:g}" for sign, limit in (("≥", low), ("≤", high)) if limit is not None]
    return f"{text} {' and '.join(limits)}"


def _shown(claim: Claim, values: Sequence[float]) -> str:
    if claim.measure == "monotone":
        return f"{sum(value == 1.0 for value in values)} of {len(values)}"
    return mean_sd(values, _digits(claim))


def _signed(claim: Claim, values: Sequence[float]) -> str:
    return ("+" if statistics.mean(values) >= 0 else "") + mean_sd(values, _digits(claim))


def _digits(claim: Claim) -> int:
    return {"cost": 3, "jobs": 0, "monotone": 0}.get(claim.measure, 2)


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
}


def _by_seed(found: Records, value: Callable[[Mapping[str, Any]], float]) -> BySeed:
    return {(r["data_seed"], r["seed"]): value(r) for r in found}


def _accuracy(_: Experiment, records: Records, method: str, form: str, budget: float) -> BySeed:
    points = points_at(records, method, form, budget)
    return _by_seed(points, lambda p: 100 * p["accuracy"])


def _cost(_: Experiment, records: Records, method: str, form: str, budget: float) -> BySeed:
    return _by_seed(points_at(records, method, form, budget), lambda p: float(p["cost"]))


def _speedup(_: Experiment, records: Records, method: str, form: str, budget: float) -> BySeed:
    found = timings(records, method=method, form=form, budget=budget)
    return _by_seed(found, lambda r: float(r["speedup"]))


def _monotone(_: Experiment, records: Records, method: str, form: str, budget: float) -> BySeed:
    found = select(records, kind="monotone", method=method)
    return _by_seed(found, lambda r: float(r["monotone"]))


def _spearman(_: Experiment, records: Records, method: str, form: str, budget: float) -> BySeed:
    return agreement_by_seed(records, method)


def _retention(_: Experiment, records: Records, method: str, form: str, budget: float) -> BySeed:
    return {seed: 100 * share for seed, share in retention_by_seed(records, method).items()}


def _removed(name: str) -> Callable[..., BySeed]:
    def measure(_: Experiment, records: Records, method: str, form: str, budget: float) -> BySeed:
        found = timings(records, method=method, form="cut", budget=budget)
        return _by_seed(found, lambda r: 100 * r["removed"][name])

    return measure


def _jobs(
    experiment: Experiment, records: Records, method: str, form: str, budget: float
) -> BySeed:
    jobs = jobs_of(experiment, records, method)
    return {(0, 0): float(jobs)} if jobs else {}


_MEASURES: dict[str, Callable[..., BySeed]] = {
    "accuracy": _accuracy,
    "cost": _cost,
    "speedup": _speedup,
    "monotone": _monotone,
    "spearman": _spearman,
    "retention": _retention,
    **{
        name: _removed(name)
        for name in ("parameters", "head_parameters", "attention_macs", "layer_macs")
    },
    "jobs": _jobs,
}
