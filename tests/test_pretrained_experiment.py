"""A whole study of a pretrained encoder, as small as it gets."""

from __future__ import annotations

import pytest
import torch
from pretrained import write_pretrained
from test_experiment import Quiet
from texts import folder

from apportion import driver
from apportion.checkpoint import load
from apportion.experiment import parse_experiment
from apportion.report.study import study_tables
from apportion.report.tables import select
from apportion.stages import checkpoint_folder

STUDY = """
name = "study"
budgets = [0.25, 0.5]
[task]
kind = "text"
data = "somebody/texts"
length = 20
train = 60
validation = 24
test = 15
[model]
pretrained = "somebody/encoder"
[seeds]
data = [7]
optimisation = [7]
[timing]
batch = 4
rows = 8
repeats = 5
single = true
forms = ["hard", "cut"]
predictions = false
[[stage]]
method = "dense"
recipe = "dense"
epochs = 2
batch_size = 8
lr = 1e-3
[[stage]]
method = "gradient"
from = "dense"
score = "squared-gradient"
[[stage]]
method = "budgeted"
from = "gradient"
teacher = "dense"
recipe = "budgeted"
epochs = 1
batch_size = 8
sweep = false
[[stage]]
method = "adapted"
from = "budgeted"
teacher = "budgeted"
recipe = "adapt"
gate_lr = 0.0
latency = true
[[stage]]
method = "post-hoc"
from = "dense"
score = "loss-increase"
keep = 1
[[stage]]
method = "recovered"
from = "post-hoc"
teacher = "dense"
recipe = "recover"
each = [0.5]
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("pretrained")
    folder(home / "texts")
    write_pretrained(home / "encoder")
    return home


@pytest.fixture(scope="module")
def study(home):
    plan = parse_experiment(STUDY, home / "texts", home / "encoder")
    have = driver.run(plan, home / "runs", home / "results.jsonl", Quiet())
    return plan, have


def model_of(study, home, method):
    (stage,) = study[0].stages_of(method)
    return load(checkpoint_folder(stage, home / "runs"))


def test_every_stage_of_the_protocol_runs(study, home):
    plan, have = study
    assert {r["method"] for r in have if r["kind"] == "stage"} == {s.method for s in plan.stages}
    assert driver.unfinished(plan, have) == ([], [])
    assert {r["protocol"] for r in select(have, kind="latency")} == {"padded", "grouped", "single"}
    assert study_tables(plan, have)


def test_gates_start_from_the_score_and_learn(study, home):
    scored = model_of(study, home, "gradient").model
    (record,) = select(study[1], kind="scores", method="gradient")
    order = torch.tensor(record["scores"]).argsort(descending=True, stable=True)
    assert torch.equal(scored.gates.a.argsort(descending=True, stable=True), order)
    learned = model_of(study, home, "budgeted").model
    assert not torch.equal(learned.gates.a, scored.gates.a)


def test_adaptation_leaves_the_gates_alone(study, home):
    before, after = (model_of(study, home, method).model for method in ("budgeted", "adapted"))
    assert torch.equal(before.gates.a, after.gates.a)
    assert torch.equal(before.gates.s, after.gates.s)
    name = "model.bert.encoder.layer.0.output.dense.weight"
    assert not torch.equal(before.state_dict()[name], after.state_dict()[name])


def test_the_recovered_specialist_is_a_smaller_model(study, home):
    recovered = model_of(study, home, "recovered")
    assert recovered.kind == "cut"
    scored = model_of(study, home, "post-hoc").model
    assert recovered.kept == scored.allocation(0.5, floor=1)
    assert all(layer["heads"] for layer in recovered.kept.to_dict().values())
    (point,) = select(study[1], kind="point", method="recovered")
    assert (point["form"], point["cost"]) == ("cut", 0.5)


def test_the_tokenizer_travels_with_the_checkpoint(study, home):
    loaded = model_of(study, home, "adapted")
    (stage,) = study[0].stages_of("adapted")
    task = stage.build_task()
    assert loaded.words.encode(["the bank said 12"]) == task.words.encode(["the bank said 12"])
    assert loaded.words.encode(["bank"])[0][0] == 2  # [CLS]
