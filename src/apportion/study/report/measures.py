"""Records → what a claim is judged by: one number for each seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from apportion.study.claims import Claim, Measure
from apportion.study.experiment import Experiment
from apportion.study.report.accounting import trainings_of
from apportion.study.report.gate_tables import agreement_by_seed, retention_by_seed
from apportion.study.report.query import Records, points_at, select, timings

BySeed = Mapping[tuple[int, int], float]
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    """One side of a claim, in the records of a study: a method in a form at a budget."""

    claim: Claim
    experiment: Experiment
    records: Records
    method: str
    form: str
    budget: float

    def by_seed(self) -> BySeed:
        """The claim's measure, averaged over budgets where it names several."""
        read = MEASURES[self.claim.measure].by_seed
        at_budgets = [read(side) for side in self.at_each_budget()]
        return {
            seed: statistics.mean(found[seed] for found in at_budgets)
            for seed in at_budgets[0]
            if all(seed in found for found in at_budgets)
        }

    def missing(self, measured: BySeed) -> str:
        """What is not there of the seeds that a study asks for, in words."""
        stages = self.experiment.stages_of(self.method)
        of_budget = [stage for stage in stages if stage.only in (None, self.budget)]
        asked_for = {(stage.task.seed, stage.seed) for stage in of_budget or stages}
        found = asked_for & set(measured)
        if found == asked_for and asked_for:
            return ""
        return f"{self.method} was measured in {len(found)} of {len(asked_for)} runs"

    def select(self, kind: str, **where: Any) -> Records:
        """The method's records of one kind."""
        return select(self.records, kind=kind, method=self.method, **where)

    def points(self) -> Records:
        """Its accuracies and costs."""
        return points_at(self.records, self.method, self.form, self.budget)

    def compared_points(self) -> Records:
        """Those points, each in its own form where a model is compared with itself."""
        both = self.claim.against == self.claim.method
        return [p for p in self.points() if p["form"] == self.form or not both]

    def at_each_budget(self) -> list[Side]:
        """This at each of the budgets that the claim averages over, or at its one."""
        return [replace(self, budget=budget) for budget in self.claim.over or (self.budget,)]

    def timed(self) -> Records:
        """Its latencies, by the protocol and on the device of the claim."""
        found = self.select("latency", form=self.form, budget=self.budget)
        wanted = (self.claim.protocol, self.claim.device)
        return [r for r in found if (r.get("protocol", "padded"), r.get("device", "cpu")) == wanted]


def sides_of(claim: Claim, experiment: Experiment, records: Records) -> tuple[Side, Side]:
    """What a claim is of, and what that is compared with, if it is."""
    study = (claim, experiment, records)
    return (
        Side(*study, claim.method, claim.form, claim.budget),
        Side(*study, claim.against, claim.against_form, claim.against_budget),
    )


def at_start(side: Side) -> BySeed:
    """The measure before any training, of seeds whose gates began in the order of a score."""
    if side.claim.measure == "spearman":
        return agreement_by_seed(side.records, side.method, at_start=True)
    if side.claim.measure == "retention":
        return _percent(retention_by_seed(side.records, side.method, at_start=True))
    return {}


@dataclass(frozen=True)
class Reading:
    """How a measure is read from records, and how people read it."""

    words: str
    by_seed: Callable[[Side], BySeed]
    digits: int = 2
    of_whole: bool = False  # of a model, not of its form at a budget


def _each(found: Records, value: Callable[[Record], float]) -> BySeed:
    return {(r["data_seed"], r["seed"]): float(value(r)) for r in found}


def _percent(shares: BySeed) -> BySeed:
    return {seed: 100 * share for seed, share in shares.items()}


def _accuracy(side: Side) -> BySeed:
    return _each(side.compared_points(), lambda point: 100 * point["accuracy"])


def _removed(side: Side) -> BySeed:
    found = timings(side.records, method=side.method, form="cut", budget=side.budget)
    return _each(found, lambda r: 100 * r["removed"][side.claim.measure])


def _switching(value: Callable[[Record], float]) -> Callable[[Side], BySeed]:
    return lambda side: _each(side.select("switching"), value)


def _trainings(total: Callable[[list[Record]], float]) -> Callable[[Side], BySeed]:
    """Of the trainings that each seed of a method took, if it has all of its stages."""

    def by_seed(side: Side) -> BySeed:
        seeds = [(s.task.seed, s.seed) for s in side.experiment.stages_of(side.method)]
        found = {}
        for data_seed, seed in dict.fromkeys(seeds):
            cell = {"data_seed": data_seed, "seed": seed}
            if len(side.select("stage", **cell)) == seeds.count((data_seed, seed)):
                jobs = trainings_of(side.records, method=side.method, **cell)
                found[data_seed, seed] = total(jobs)
        return found

    return by_seed


MEASURES: dict[Measure, Reading] = {
    "accuracy": Reading("accuracy", _accuracy),
    "cost": Reading("cost", lambda side: _each(side.points(), lambda p: p["cost"]), digits=3),
    "speedup": Reading("speed-up", lambda side: _each(side.timed(), lambda r: r["speedup"])),
    "share_by_macs": Reading(
        "% of the speed-up by MACs",
        lambda side: _each(side.timed(), lambda r: 100 * r["speedup"] / r["bound"]),
        digits=1,
    ),
    "throughput": Reading(
        "% of the bare model's rows a second",
        lambda side: _each(
            side.select("throughput", budget=side.budget), lambda r: 100 * r["share"]
        ),
        digits=1,
    ),
    "switch_us": Reading(
        "µs to change the budget", _switching(lambda r: r["switch_us"]), of_whole=True
    ),
    "copied_bytes": Reading(
        "copied bytes of weights", _switching(lambda r: r["extra_bytes"]), digits=0, of_whole=True
    ),
    "memory": Reading(
        "% more memory for all budgets",
        _switching(lambda r: 100 * (r["extra_bytes"] + r["object_bytes"]) / r["whole_bytes"]),
        of_whole=True,
    ),
    "monotone": Reading(
        "monotone cost",
        lambda side: _each(side.select("monotone"), lambda r: r["monotone"]),
        digits=0,
        of_whole=True,
    ),
    "spearman": Reading(
        "Spearman's correlation of gates at 0.25 and 0.75",
        lambda side: agreement_by_seed(side.records, side.method),
        of_whole=True,
    ),
    "retention": Reading(
        "% of the heads kept at 0.25 that 0.75 keeps",
        lambda side: _percent(retention_by_seed(side.records, side.method)),
        of_whole=True,
    ),
    "parameters": Reading("% of all parameters taken away", _removed),
    "head_parameters": Reading("% of head parameters taken away", _removed),
    "attention_macs": Reading("% of attention MACs taken away", _removed),
    "layer_macs": Reading("% of layer MACs taken away", _removed),
    "jobs": Reading("fine-tune jobs", _trainings(len), digits=0, of_whole=True),
    "minutes": Reading(
        "minutes of training",
        _trainings(lambda jobs: sum(job["training"]["seconds"] for job in jobs) / 60),
        digits=1,
        of_whole=True,
    ),
    "training_seconds": Reading(
        "seconds of training",
        # Records have tenths of them; a training took some time.
        lambda side: _each(side.select("stage"), lambda r: r["training"]["seconds"] or 0.1),
        digits=1,
        of_whole=True,
    ),
    "fewest": Reading(
        "heads of the emptiest layer",
        lambda side: _each(
            side.select("gates", budget=side.budget),
            lambda r: min(len(kept["heads"]) for kept in r["kept"].values()),
        ),
        digits=0,
    ),
    "size": Reading(
        "millions of parameters",
        lambda side: _each(side.select("stage"), lambda r: r["parameters"] / 1e6),
        digits=1,
        of_whole=True,
    ),
}
