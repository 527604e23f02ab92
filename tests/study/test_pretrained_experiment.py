"""A whole study of a pretrained encoder, as small as it gets."""

from __future__ import annotations

import json

import pytest
import torch
from commands import run
from pretrained import write_pretrained
from scipy import stats
from texts import folder
from witnesses import Quiet

from apportion.elastic.checkpoint import load
from apportion.elastic.elastic import Elastic, logits_of
from apportion.elastic.evaluation import evaluate
from apportion.method.units import Allocation
from apportion.study.driver import local_driver as driver
from apportion.study.experiment import parse_experiment
from apportion.study.report.query import select
from apportion.study.report.study_tables import study_tables
from apportion.study.stages import checkpoint_folder

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
short = 8
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
method = "learned-order"
from = "dense"
teacher = "budgeted"
score = "learned"
[[stage]]
method = "recovered"
from = "post-hoc"
teacher = "dense"
latency = true
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
    have = driver.run(plan, home / "runs", results=home / "results.jsonl", watcher=Quiet())
    return plan, have


def model_of(study, home, method):
    (stage,) = study[0].stages_of(method)
    return load(checkpoint_folder(stage, home / "runs"))


def test_every_stage_of_the_protocol_runs(study, home):
    """Each from its parent and by its recipe, measured in the forms that it has."""
    plan, have = study
    of_stage = {r["stage"]: r for r in have if r["kind"] == "stage"}
    assert set(of_stage) == {stage.key for stage in plan.stages}
    assert driver.unfinished(plan, have) == ([], [])
    for stage in plan.stages:
        record = of_stage[stage.key]
        assert record["parent"] == (stage.parent and stage.parent.key)
        assert record["teacher"] == (stage.teacher and stage.teacher.key)
        assert (record["training"] is not None) == (stage.recipe is not None)
    found = {
        method: {(p["form"], p["budget"]) for p in select(have, kind="point", method=method)}
        for method in {stage.method for stage in plan.stages}
    }
    at = (0.25, 0.5)
    gates = {(form, b) for form in ("soft", "hard") for b in (*at, 1.0)} | {("cut", b) for b in at}
    assert found.pop("adapted") >= gates
    assert found == {
        "dense": {("dense", 1.0)},
        "gradient": {("hard", b) for b in at},
        "post-hoc": {("hard", b) for b in at},
        "learned-order": {("hard", b) for b in at},
        "budgeted": gates,
        "recovered": {("cut", 0.5)},
    }
    story = [recipe["name"] for recipe in model_of(study, home, "adapted").notes["recipes"]]
    assert story == ["dense", "budgeted", "adapt"]


def test_every_protocol_is_timed_on_the_rows_that_it_says(study):
    timed = select(study[1], kind="latency")
    shapes = {r["protocol"]: (r["batch"], r["length"], r["rows"]) for r in timed}
    assert shapes == {
        "padded": (4, 20, 8),
        "grouped": (4, shapes["grouped"][1], 8),
        "single": (1, 20, 8),
        "short": (1, 8, 8),
    }
    tokens = {r["protocol"]: r["tokens"] for r in timed}
    assert tokens["padded"] == tokens["single"] == 20 > tokens["grouped"]


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


def test_a_specialist_is_timed_beside_the_model_that_it_was_cut_from(study):
    plan, have = study
    (specialist,) = plan.stages_of("recovered")
    timed = select(have, kind="latency", method="recovered", protocol="padded")
    assert [(r["form"], r["budget"]) for r in timed] == [("dense", 1.0), ("cut", specialist.only)]
    same = select(have, kind="latency", method="post-hoc", protocol="padded")
    assert not same  # nobody asked for it
    assert timed[1]["bound"] > 1.0 and timed[1]["removed"]["parameters"] > 0


def test_the_tokenizer_travels_with_the_checkpoint(study, home):
    loaded = model_of(study, home, "adapted")
    (stage,) = study[0].stages_of("adapted")
    task = stage.build_task()
    assert loaded.words.encode(["the bank said 12"]) == task.words.encode(["the bank said 12"])
    assert loaded.words.encode(["bank"])[0][0] == 2  # [CLS]


def test_the_learned_order_is_a_score_of_its_own(study, home):
    learned, budgeted = (model_of(study, home, m).model for m in ("learned-order", "budgeted"))
    order = budgeted.gates(0.5).argsort(descending=True, stable=True)
    assert torch.equal(learned.gates.a.argsort(descending=True, stable=True), order)
    name = "bert.encoder.layer.0.output.dense.weight"
    dense = model_of(study, home, "dense").model
    assert torch.equal(learned.plain().state_dict()[name], dense.state_dict()[name])


def test_rankings_and_movement_are_told_from_the_start(study, home):
    tables = {table.name: table for table in study_tables(*study)}
    ranked = {row[0]: row for row in tables["ranking"].rows}
    start, end = (model_of(study, home, m).model for m in ("gradient", "budgeted"))
    low, high, first = end.gates(0.25), end.gates(0.75), start.gates(0.75)
    alike, learned = (
        stats.spearmanr(one.tolist(), other.tolist()).statistic
        for one, other in ((low, high), (high, first))
    )
    kept, then = (
        set(model.allocation(0.5).mask().nonzero()[:, 0].tolist()) for model in (end, start)
    )
    for method in ("budgeted", "adapted"):  # adaptation left the gates alone
        assert ranked[method][2] == f"{alike:.2f}"
        assert ranked[method][4] == f"{learned:.2f}"
        assert ranked[method][5] == f"{100 * len(kept - then) / len(kept):.1f}"
    assert {row[0] for row in tables["movement"].rows} == {"budgeted", "adapted"}
    assert tables["scoring"].rows[0][:3] == ("post-hoc", "7", "8")


def test_the_card_says_what_the_model_is_and_what_it_kept(study, home):
    (stage,) = study[0].stages_of("adapted")
    card = (checkpoint_folder(stage, home / "runs") / "README.md").read_text()
    assert "library_name" in card
    assert "BertForSequenceClassification: 2 layers of 4 heads" in card
    assert "| 0.50 |" in card
    (stage,) = study[0].stages_of("recovered")
    card = (checkpoint_folder(stage, home / "runs") / "README.md").read_text()
    assert "cut to 50% of its units" in card
    assert "| layer 0 | heads |" in card


def test_masking_one_head_at_a_time_gives_what_whole_passes_give(study, home):
    (stage,) = study[0].stages_of("post-hoc")
    task = stage.build_task()
    dense = Elastic(model_of(study, home, "dense").model, length=20)
    whole = evaluate(dense, task.validation).loss
    everything = set(range(len(dense.units)))
    (record,) = select(study[1], kind="scores", method="post-hoc")
    for position, score in enumerate(record["scores"]):
        rest = Allocation.of(dense.units, everything - {position})
        loss = evaluate(dense, task.validation, allocation=rest, form="hard").loss
        assert score == pytest.approx(loss - whole, abs=1e-5)
    assert record["passes"] == len(dense.units)


def test_the_squared_gradient_is_taken_row_by_row(study, home):
    (stage,) = study[0].stages_of("gradient")
    task = stage.build_task()
    dense = Elastic(model_of(study, home, "dense").model, length=20).eval()
    total = torch.zeros(len(dense.units))
    for row in range(len(task.train)):
        inputs, labels = task.train.batch(torch.tensor([row]))
        z = torch.ones(len(dense.units), requires_grad=True)
        loss = torch.nn.functional.cross_entropy(logits_of(dense(**inputs, z=z)), labels)
        total += torch.autograd.grad(loss, z)[0].square()
    (record,) = select(study[1], kind="scores", method="gradient")
    expected = total / len(task.train)
    assert torch.allclose(torch.tensor(record["scores"]), expected, rtol=1e-3, atol=1e-8)


@pytest.mark.slow
def test_train_starts_from_a_pretrained_folder(home, tmp_path, capsys):
    words = (
        f"train --data {home / 'texts'} --model {home / 'encoder'} --out {tmp_path / 'out'} "
        "--units heads --rows 24 --held-out 12 --length 20 --epochs 1 --budgeted-epochs 1 --json"
    )
    code, out, _ = run(capsys, *words.split())
    assert code == 0
    assert json.loads(out)["budgets"][0]["budget asked"] == "0.25"
    checkpoint = str(tmp_path / "out" / "checkpoint")
    card = (tmp_path / "out" / "checkpoint" / "README.md").read_text()
    assert "## Measured on test rows" in card
    code, out, _ = run(capsys, "inspect", checkpoint)
    assert "elastic checkpoint: BertForSequenceClassification, 2 layers x 4 heads" in out
    smaller = str(tmp_path / "smaller")
    code, out, _ = run(capsys, "cut", checkpoint, "-b", "0.5", "--out", smaller, "--self-contained")
    assert code == 0
    assert (tmp_path / "smaller" / "shrinking.py").exists()
    texts = str(home / "texts" / "test.csv")
    code, whole, _ = run(capsys, "predict", checkpoint, texts, "-b", "0.5")
    code, cut, _ = run(capsys, "predict", smaller, texts)
    assert code == 0
    assert [line.split(",")[1] for line in cut.splitlines()] == [
        line.split(",")[1] for line in whole.splitlines()
    ]
    code, _, err = run(capsys, "cut", checkpoint, "-b", "0.1", "--floor", "1", "--out", smaller)
    assert code == 2
    assert "the smallest feasible budget is" in err
