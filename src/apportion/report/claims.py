"""Records → verdicts: what the paper says in words, and whether it holds here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.experiment import Experiment
from apportion.report.gates import agreement_by_seed, retention_by_seed
from apportion.report.study import trainings_of
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
    """Whether a claim holds in the records of a study; part of the runs prove nothing."""
    if claim.untested:
        return Verdict(claim, UNTESTED, claim.untested)
    measure = _MEASURES[claim.measure]
    own = measure(experiment, records, claim, claim.method, claim.form, claim.budget)
    missing = _missing(experiment, own, claim.method, claim.budget)
    values, test = list(own.values()), "–"
    here = _shown(claim, values)
    p = None
    if claim.against and not missing:
        where = (claim.against, claim.against_form, claim.against_budget)
        other = measure(experiment, records, claim, *where)
        missing = _missing(experiment, other, claim.against, claim.against_budget)
        pairs = [(own[seed], other[seed]) for seed in own if seed in other]
        values = [mine - against for mine, against in pairs]
        theirs = _shown(claim, [against for _, against in pairs])
        p = paired_test(pairs)
        test = "–" if p is None else f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
    if missing or not values:
        on = f" on {claim.device}" * (claim.device != "cpu")
        return Verdict(claim, UNTESTED, f"{missing or 'no seed has both'}{on}")
    if claim.against:
        here += f" against {theirs}: {_signed(claim, values)}"
    value = statistics.mean(values) if claim.statistic == "mean" else min(values)
    if claim.statistic == "p":
        if p is None:
            return Verdict(claim, UNTESTED, f"{here}; too few seeds for a test")
        value = p
    elif claim.statistic == "lowest" and len(values) > 1 and claim.measure != "monotone":
        here += f", lowest {value:.{_digits(claim)}f}"
    # Compared as shown, so that nobody sees 0.30 fail against 0.30.
    value = round(value, 3 if claim.statistic == "p" else _digits(claim))
    holds = (claim.at_least is None or value >= claim.at_least) and (
        claim.at_most is None or value <= claim.at_most
    )
    return Verdict(claim, HOLDS if holds else FAILS, f"{here} (n = {len(values)})", test)


def _missing(experiment: Experiment, own: BySeed, method: str, budget: float) -> str:
    """What is not there of the seeds that a study asks for, in words."""
    stages = [s for s in experiment.stages_of(method) if s.only in (None, budget)]
    asked_for = {(s.task.seed, s.seed) for s in stages or experiment.stages_of(method)}
    found = asked_for & set(own)
    if found == asked_for and asked_for:
        return ""
    return f"{method} was measured in {len(found)} of {len(asked_for)} runs"


def paired_test(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The p-value of a paired t-test over seeds, where there are enough of them for one."""
    from scipy import stats  # slow to import

    differences = {round(mine - theirs, 6) for mine, theirs in pairs}
    if len(pairs) < 3 or len(differences) == 1:
        return None
    return float(stats.ttest_rel(*zip(*pairs, strict=True)).pvalue)


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
    "three seeds only a large and steady difference can reach 0.05. Jobs are counted from the "
    "stages that ran."
)


def count_verdicts(tables: Sequence[Table]) -> dict[str, int]:
    """How many claims hold, do not, and were not tested."""
    verdicts = [row[-1] for table in tables for row in table.rows]
    return {verdict: verdicts.count(verdict) for verdict in (HOLDS, FAILS, UNTESTED)}


def _asked(claim: Claim) -> str:
    if claim.untested:
        return "–"
    text = f"{_WORDS.get(claim.measure, claim.measure)} of {_of(claim.method, claim.form, claim)}"
    if claim.against:
        text += f" minus {_of(claim.against, claim.against_form, claim, claim.against_budget)}"
    if claim.statistic == "p":
        text = f"p of {text}"
    elif claim.statistic == "lowest":
        text = f"lowest {text}"
    low, high = claim.at_least, claim.at_most
    if low is not None and low == high:
        return f"{text} = {low:g}"
    limits = [f"{sign} {limit:g}" for sign, limit in (("≥", low), ("≤", high)) if limit is not None]
    return f"{text} {' and '.join(limits)}"


def _of(method: str, form: str, claim: Claim, budget: float | None = None) -> str:
    if claim.measure in _OF_THE_WHOLE or form == "dense":
        return method
    on = f" on {claim.device}" * (claim.device != "cpu")
    return f"{method} {form} at {asked(claim.budget if budget is None else budget)}{on}"


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


def _by_seed(found: Records, value: Callable[[Mapping[str, Any]], float]) -> BySeed:
    return {(r["data_seed"], r["seed"]): value(r) for r in found}


def _accuracy(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    points = points_at(records, method, form, budget)
    return _by_seed(points, lambda p: 100 * p["accuracy"])


def _cost(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    return _by_seed(points_at(records, method, form, budget), lambda p: float(p["cost"]))


def _speedup(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    found = timings(records, method=method, form=form, budget=budget)
    there = [record for record in found if record.get("device", "cpu") == claim.device]
    return _by_seed(there, lambda r: float(r["speedup"]))


def _monotone(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    found = select(records, kind="monotone", method=method)
    return _by_seed(found, lambda r: float(r["monotone"]))


def _spearman(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    return agreement_by_seed(records, method)


def _retention(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    return {seed: 100 * share for seed, share in retention_by_seed(records, method).items()}


def _removed(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    found = timings(records, method=method, form="cut", budget=budget)
    return _by_seed(found, lambda r: 100 * r["removed"][claim.measure])


def _jobs(
    experiment: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    return {seed: float(len(jobs)) for seed, jobs in _trainings(experiment, records, method)}


def _minutes(
    experiment: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    return {
        seed: sum(job["training"]["seconds"] for job in jobs) / 60
        for seed, jobs in _trainings(experiment, records, method)
    }


def _trainings(
    experiment: Experiment, records: Records, method: str
) -> list[tuple[tuple[int, int], list[Mapping[str, Any]]]]:
    """The trainings that each seed of a method took, of seeds that have all of their stages."""
    seeds: dict[tuple[int, int], int] = {}
    for stage in experiment.stages_of(method):
        seeds[stage.task.seed, stage.seed] = seeds.get((stage.task.seed, stage.seed), 0) + 1
    found = []
    for (data_seed, seed), count in seeds.items():
        cell = {"method": method, "data_seed": data_seed, "seed": seed}
        if len(select(records, kind="stage", **cell)) == count:
            found.append(((data_seed, seed), trainings_of(records, **cell)))
    return found


def _fewest(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    found = select(records, kind="gates", method=method, budget=budget)
    return _by_seed(found, lambda r: float(min(len(k["heads"]) for k in r["kept"].values())))


def _size(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    return _by_seed(select(records, kind="stage", method=method), lambda r: r["parameters"] / 1e6)


_MEASURES: dict[str, Callable[..., BySeed]] = {
    "accuracy": _accuracy,
    "cost": _cost,
    "speedup": _speedup,
    "monotone": _monotone,
    "spearman": _spearman,
    "retention": _retention,
    "parameters": _removed,
    "head_parameters": _removed,
    "attention_macs": _removed,
    "layer_macs": _removed,
    "jobs": _jobs,
    "minutes": _minutes,
    "fewest": _fewest,
    "size": _size,
}
