"""A study of heads and feed-forward blocks in one nested order, as small as it gets."""

from __future__ import annotations

import pytest
import torch
from test_experiment import Quiet

from apportion import driver
from apportion.checkpoint import load
from apportion.elastic import Elastic
from apportion.evaluation import evaluate
from apportion.experiment import parse_experiment
from apportion.report.figures import study_figures
from apportion.report.goals import goal_table
from apportion.report.study import study_tables
from apportion.report.tables import select
from apportion.scoring import Scored, nest, random, uniform
from apportion.stages import checkpoint_folder
from apportion.units import Allocation

STUDY = """
name = "nested"
units = "all"
budgets = [0.25, 0.5]
[task]
kind = "marked"
length = 12
values = 4
distractors = 2
train = 64
validation = 32
test = 32
[model]
layers = 2
heads = 4
hidden = 16
feedforward = 128
[seeds]
data = [1]
optimisation = [7]
[timing]
batch = 8
repeats = 5
[[stage]]
method = "dense"
recipe = "dense"
epochs = 1
[[stage]]
method = "order"
from = "dense"
score = "squared-gradient"
nested = true
[[stage]]
method = "nested"
from = "order"
teacher = "dense"
recipe = "nested"
epochs = 1
latency = true
[[stage]]
method = "specialist"
from = "order"
teacher = "dense"
recipe = "recover"
each = [0.25, 0.5]
[[stage]]
method = "uniform"
from = "dense"
score = "uniform"
nested = true
[[goal]]
name = "fast"
method = "nested"
form = "skip"
budget = 0.25
speedup = 0.01
[[goal]]
name = "faster than light"
method = "nested"
form = "skip"
budget = 0.25
speedup = 1e6
[[goal]]
name = "as good as specialists"
method = "nested"
form = "cut"
against = "specialist"
against_form = "cut"
over = [0.25, 0.5]
within = 100.0
[[goal]]
name = "better than specialists can be"
method = "nested"
form = "cut"
against = "specialist"
against_form = "cut"
over = [0.25, 0.5]
within = -101.0
[[goal]]
name = "at once"
method = "nested"
switch_us = 1e6
[[goal]]
name = "in some memory"
method = "nested"
memory = 1e3
[[goal]]
name = "in no memory at all"
method = "nested"
memory = 0.0
[[goal]]
name = "trained in good time"
method = "nested"
against = "dense"
training = 1e6
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    home = tmp_path_factory.mktemp("nested")
    plan = parse_experiment(STUDY)
    have = driver.run(plan, home / "runs", home / "results.jsonl", Quiet())
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
    outcome = evaluate(model, stage.build_task().test, 0.5, "hard")
    (half,) = [p for p in points if p["budget"] == 0.5]
    assert (half["accuracy"], half["cost"]) == pytest.approx((outcome.accuracy, outcome.cost))
    timed = select(have, kind="latency", method="nested", form="skip")
    assert {r["budget"] for r in timed} == {0.25, 0.5}


def test_goals_of_speed_switching_training_and_averages_are_judged(ran):
    plan, have, _ = ran
    met = {row[0]: row[3] for row in goal_table(plan, have).rows}
    assert met == {
        "fast": "yes",
        "faster than light": "no",
        "as good as specialists": "yes",
        "better than specialists can be": "no",
        "at once": "yes",
        "in some memory": "yes",
        "in no memory at all": "no",
        "trained in good time": "yes",
    }
    without = [r for r in have if r["method"] != "specialist"]
    (row,) = [r for r in goal_table(plan, without).rows if r[0] == "as good as specialists"]
    assert row[3] == "not yet"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('against = "dense"\ntraining|training', "names nothing to compare with"),
        ('against = "dense"\ntraining|against = "order"\ntraining', "a stage of it has none"),
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
    """Scores of single neurons, so odd that only sorting them makes blocks worth something."""
    model = Elastic(encoder, ("heads", "feedforward"), task.length, block=16)

    def score(fine):
        return random(fine.units, seed=3)

    nested, scored = nest(model, score)
    fine = Elastic(encoder, ("heads", "feedforward"), task.length, block=1)
    found = random(fine.units, seed=3).scores
    for key, span in nested.units.spans.items():
        best = found[fine.units.spans[key]].sort(descending=True).values
        assert torch.allclose(scored.scores[span], best.view(span.stop - span.start, -1).sum(1))
    ids = task.test.inputs["input_ids"]
    with torch.no_grad():
        assert torch.allclose(nested(ids), encoder(ids), atol=1e-5)


def test_a_uniform_cut_takes_the_same_share_of_every_layer(encoder, task):
    units = Elastic(encoder, ("heads", "feedforward"), task.length, block=16).units
    scored = Scored(torch.rand(len(units)), {})
    elastic = Elastic(encoder, ("heads", "feedforward"), task.length, block=16)
    kept = elastic.nested(uniform(scored, units).scores).allocation(0.5)
    shares = [
        len(kept.indices(layer, kind)) / (span.stop - span.start)
        for (layer, kind), span in units.spans.items()
    ]
    assert set(shares) == {0.5}
    assert isinstance(kept, Allocation)
