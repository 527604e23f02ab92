"""Records → what a claim is judged by: one number for each seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from apportion.study.claims import Claim
from apportion.study.experiment import Experiment
from apportion.study.report.accounting import trainings_of
from apportion.study.report.gate_tables import agreement_by_seed, retention_by_seed
from apportion.study.report.tables import Records, points_at, select, timings

BySeed = Mapping[tuple[int, int], float]


def _by_seed(found: Records, value: Callable[[Mapping[str, Any]], float]) -> BySeed:
    return {(r["data_seed"], r["seed"]): value(r) for r in found}


def _accuracy(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    points = points_at(records, method, form, budget)
    if claim.against == claim.method:
        # A model that is compared with itself has to be measured in both forms.
        points = [point for point in points if point["form"] == form]
    return _by_seed(points, lambda p: 100 * p["accuracy"])


def _cost(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    return _by_seed(points_at(records, method, form, budget), lambda p: float(p["cost"]))


def _speedup(
    _: Experiment, records: Records, claim: Claim, method: str, form: str, budget: float
) -> BySeed:
    found = timed(records, claim, method, form, budget)
    return _by_seed(found, lambda r: float(r["speedup"]))


def timed(records: Records, claim: Claim, method: str, form: str, budget: float) -> Records:
    """The latencies that a claim on speed is of."""
    found = timings(records, method=method, form=form, budget=budget)
    return [record for record in found if record.get("device", "cpu") == claim.device]


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


def at_start(records: Records, claim: Claim) -> BySeed:
    """The measure before any training, of seeds whose gates began in the order of a score."""
    if claim.measure == "spearman":
        return agreement_by_seed(records, claim.method, at_start=True)
    if claim.measure == "retention":
        found = retention_by_seed(records, claim.method, at_start=True)
        return {seed: 100 * share for seed, share in found.items()}
    return {}


MEASURES: dict[str, Callable[..., BySeed]] = {
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
