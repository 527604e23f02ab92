"""A study of heads and feed-forward blocks in one nested order, as small as it gets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from studies import STUDY
from witnesses import Quiet

from apportion.elastic.checkpoint import load
from apportion.elastic.elastic import Elastic
from apportion.elastic.evaluation import evaluate
from apportion.elastic.scoring import Scored, nest, random, uniform
from apportion.method.allocation import allocate
from apportion.method.units import Allocation
from apportion.study.claims import Claim
from apportion.study.driver import local_driver as driver
from apportion.study.experiment import parse_experiment
from apportion.study.report.claim_tables import goal_table
from apportion.study.report.figures import study_figures
from apportion.study.report.query import select
from apportion.study.report.study_tables import study_tables
from apportion.study.stages import checkpoint_folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    home = tmp_path_factory.mktemp("nested")
    plan = parse_experiment(STUDY)
    have = driver.run(plan, home / "runs", results=home / "results.jsonl", watcher=Quiet())
    return plan, have, home / "runs"


def test_one_checkpoint_is_measured_as_the_models_that_it_cuts(ran):
    plan, have, runs = ran
    points = select(have, kind="point", method="nested")
    assert {p["form"] for p in points} == {"cut"} and {0.25, 0.5, 1.0} <= {
        p["budget"] for p in points
    }
    (stage,) = plan.stages_of("nested")
    model = load(checkpoint_folder(stage, runs)).model
    assert isinstance(model, Elastic) and model.kinds == ("heads", "feedforward")
    assert model.gates.order is not None
    outcome = evaluate(model, stage.build_task().test, budget=0.5, form="hard")
    (half,) = [p for p in points if p["budget"] == 0.5]
    assert (half["accuracy"], half["cost"]) == pytest.approx((outcome.accuracy, outcome.cost))
    timed = select(have, kind="latency", method="nested", form="skip")
    assert {r["budget"] for r in timed} == {0.25, 0.5}


def test_goals_of_speed_switching_training_and_averages_are_judged(ran):
    plan, have, _ = ran
    met = {row[0]: row[-1] for row in goal_table(plan, have).rows}
    assert met == {
        "fast": "yes",
        "faster than light": "no",
        "as good as specialists": "yes",
        "better than specialists can be": "no",
        "at once": "yes",
        "at once, weights copied": "yes",
        "in some memory": "yes",
        "in no memory at all": "no",
        "trained in good time": "yes",
    }
    without = [r for r in have if r["method"] != "specialist"]
    (row,) = [r for r in goal_table(plan, without).rows if r[0] == "as good as specialists"]
    assert row[-1] == "not yet"


def judged(plan, records, **bounds):
    """Whether a claim with these bounds is met by the records."""
    claim = Claim("x", **{"method": "nested", **bounds})
    ((*_, met),) = goal_table(replace(plan, claims=(claim,)), records).rows
    return met


def with_facts(records, where, **facts):
    """The records, with some facts of those that fit replaced."""
    return [{**r, **facts} if all(r.get(k) == v for k, v in where.items()) else r for r in records]


def test_goals_of_time_and_memory_are_judged_at_their_bounds(ran):
    """A hair above or below what the records say decides."""
    plan, have, _ = ran
    at = {"form": "skip", "budget": 0.25}
    timed = with_facts(have, {"kind": "latency", **at}, speedup=2.0, bound=2.5)
    assert judged(plan, timed, **at, measure="speedup", at_least=2.0) == "yes"
    assert judged(plan, timed, **at, measure="speedup", at_least=2.01) == "no"
    assert judged(plan, timed, **at, measure="share_by_macs", at_least=80.0) == "yes"
    assert judged(plan, timed, **at, measure="share_by_macs", at_least=80.1) == "no"
    both = with_facts(timed, {"kind": "latency", "form": "cut", "budget": 0.25}, speedup=1.6)
    cut = {"against": "nested", "against_form": "cut", "against_budget": 0.25, "ratio": True}
    assert judged(plan, both, **at, **cut, measure="speedup", at_least=1.25) == "yes"
    assert judged(plan, both, **at, **cut, measure="speedup", at_least=1.251) == "no"
    switch = {"switch_us": 3.0, "extra_bytes": 0, "object_bytes": 10, "whole_bytes": 1000}
    quick = with_facts(have, {"kind": "switching"}, **switch)
    assert judged(plan, quick, measure="switch_us", at_most=3.0) == "yes"
    assert judged(plan, quick, measure="switch_us", at_most=2.99) == "no"
    assert judged(plan, quick, measure="copied_bytes", at_most=0) == "yes"
    assert judged(plan, quick, measure="memory", at_most=1.0) == "yes"
    assert judged(plan, quick, measure="memory", at_most=0.99) == "no"
    copied = with_facts(quick, {"kind": "switching"}, extra_bytes=1)
    assert judged(plan, copied, measure="copied_bytes", at_most=0) == "no"  # views copy nothing
    assert judged(plan, copied, measure="memory", at_most=1.0) == "no"
    trained = with_facts(have, {"kind": "stage", "method": "nested"}, training={"seconds": 9.0})
    trained = with_facts(trained, {"kind": "stage", "method": "dense"}, training={"seconds": 6.0})
    longer = {"measure": "training_seconds", "against": "dense", "ratio": True}
    assert judged(plan, trained, **longer, at_most=1.5) == "yes"
    assert judged(plan, trained, **longer, at_most=1.499) == "no"


def test_goals_of_accuracy_are_judged_at_their_bounds(ran):
    plan, have, _ = ran
    for budget, mine, theirs in ((0.25, 0.80, 0.84), (0.5, 0.90, 0.88)):  # -4 and +2 points
        for method, accuracy in (("nested", mine), ("specialist", theirs)):
            where = {"kind": "point", "form": "cut", "budget": budget, "method": method}
            have = with_facts(have, where, accuracy=accuracy, cost=0.26)
    against = {"form": "cut", "against": "specialist", "against_form": "cut"}
    assert judged(plan, have, **against, over=(0.25, 0.5), at_least=-1.0) == "yes"
    assert judged(plan, have, **against, over=(0.25, 0.5), at_least=-0.99) == "no"
    one = {**against, "budget": 0.25, "against_budget": 0.25}
    assert judged(plan, have, **one, at_least=-4.0) == "yes"
    assert judged(plan, have, **one, at_least=-3.99) == "no"
    alone = {"form": "cut", "budget": 0.25}
    assert judged(plan, have, **alone, at_least=80.0, cost_at_most=0.26) == "yes"
    assert judged(plan, have, **alone, at_least=80.0, cost_at_most=0.259) == "no"
    assert judged(plan, have, **alone, at_least=80.01) == "no"
    assert judged(plan, have, **alone, every_above=79.9) == "yes"
    assert judged(plan, have, **alone, every_above=80.0) == "no"  # above, not at


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('against = "dense"\nratio|ratio', "names nothing to compare with"),
        ('against = "dense"\nratio|against = "order"\nratio', "a stage of it has none"),
        ('form = "skip"|protocol = "grouped"', "timing of texts, and no other, has a protocol"),
        ('method = "nested"\nform = "skip"|method = "dense"\nform = "skip"', "is not timed"),
    ],
)
def test_goals_that_mean_nothing_are_refused(change, says):
    before, after = change.split("|")
    assert before in STUDY
    with pytest.raises(ValueError, match=says):
        parse_experiment(STUDY.replace(before, after))


def test_the_report_compares_the_one_checkpoint_with_its_yardsticks(ran):
    plan, have, _ = ran
    tables = {table.name: table for table in study_tables(plan, have)}
    against = tables["against"]
    assert against.columns[-1] == "nested - specialist" and len(against.rows) > 2
    nested, specialist = (
        select(have, kind="point", method=m, form="cut", budget=0.25)[0]["accuracy"]
        for m in ("nested", "specialist")
    )
    (row,) = [row for row in against.rows if row[0] == "0.25"]
    assert row[-1] == f"{100 * (nested - specialist):+.2f}"
    assert [row[0] for row in tables["budgets"].rows] == ["0.25", "0.50", "1.00"]
    paid = ("budget asked", "cost paid", "accuracy", "against dense", "speed, views")
    assert tables["budgets"].columns[:5] == paid
    assert not {"sweep", "ranking", "movement"} & set(tables)  # its gates are not soft
    assert tables["switching"].rows[0][6] == "0"  # no weight is copied
    assert {p.name for p in study_figures(plan, have)} == {"pareto", "allocation", "speed"}


def test_specialists_keep_the_units_that_the_one_checkpoint_does(ran):
    plan, _, runs = ran
    (order,) = plan.stages_of("order")
    whole = load(checkpoint_folder(order, runs)).model
    for stage in plan.stages_of("specialist"):
        kept = load(checkpoint_folder(stage, runs)).kept
        assert kept.to_dict() == whole.allocation(stage.only).to_dict()


def test_neurons_that_are_wanted_alike_share_a_block(task, encoder):
    """A budget's blocks are the neurons that score highest one by one, wherever they stood."""
    model = Elastic(encoder, ("heads", "feedforward"), length=task.length, block=16)

    def score(fine):
        return random(fine.units, seed=3)

    nested, scored = nest(model, score)
    fine = Elastic(encoder, ("heads", "feedforward"), length=task.length, block=1)
    found = random(fine.units, seed=3).scores
    for key, span in nested.units.spans.items():
        best = found[fine.units.spans[key]].sort(descending=True).values
        assert torch.allclose(scored.scores[span], best.view(span.stop - span.start, -1).sum(1))
    ids = task.test.inputs["input_ids"]
    with torch.no_grad():
        assert torch.allclose(nested(ids), encoder(ids), atol=1e-5)
        for budget in (0.25, 0.4, 0.6):
            kept = nested.allocation(budget)
            alone = []
            for (layer, kind), span in fine.units.spans.items():
                count = len(kept.indices(layer, kind)) * (16 if kind == "feedforward" else 1)
                best = found[span].argsort(descending=True)[:count]
                alone += (best + span.start).tolist()
            hard = nested(ids, budget=budget, form="hard")
            masked = fine(ids, allocation=Allocation.of(fine.units, alone))
            assert torch.allclose(hard, masked, atol=1e-5), budget
            assert not torch.allclose(hard, encoder(ids), atol=1e-2)


def test_a_uniform_cut_takes_the_same_share_of_every_layer(encoder, task):
    """The best of each, by the scores that it is given."""
    units = Elastic(encoder, ("heads", "feedforward"), length=task.length, block=16).units
    scored = Scored(torch.rand(len(units)), {})
    kept = allocate(uniform(scored, units).scores, units, budget=0.5)
    for (layer, kind), span in units.spans.items():
        half = (span.stop - span.start) // 2
        best = scored.scores[span].argsort(descending=True)[:half].tolist()
        assert kept.indices(layer, kind) == sorted(best)
