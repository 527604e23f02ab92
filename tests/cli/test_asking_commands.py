"""Every command asks a checkpoint for the same units, those that its tables were measured with."""

from __future__ import annotations

import json

import pytest
import torch
from commands import run
from texts import folder

from apportion.elastic.checkpoint import MANIFEST, load
from apportion.elastic.repairing import REPAIRED_AT
from apportion.serving.bench.timing import count_macs
from apportion.serving.runtime.skipping import Skipping
from apportion.study.experiment import parse_experiment
from apportion.study.measuring import run_stage
from apportion.study.production import produce
from apportion.study.stages import checkpoint_folder

STUDY = """
name = "study"
budgets = [0.4, 0.75]
UNITS
[task]
kind = "text"
data = "somebody/texts"
length = 20
train = 48
validation = 12
test = 12
min_count = 1
[model]
layers = 2
heads = 4
hidden = 16
feedforward = 256
[seeds]
data = [7]
optimisation = [3] # its random scores leave a layer to the floor
[timing]
budgets = [0.4]
[[stage]]
method = "dense"
recipe = "dense"
epochs = 1
"""
HEADS = """
[[stage]]
method = "scored"
from = "dense"
score = "random"
keep = 1
[[stage]]
method = "budgeted"
from = "scored"
recipe = "budgeted"
epochs = 1
floor = 1
sweep = false
[[stage]]
method = "swept"
from = "dense"
recipe = "budgeted"
epochs = 1
[[stage]]
method = "adapted"
from = "budgeted"
teacher = "budgeted"
recipe = "adapt"
floor = 1
sweep = false
[[stage]]
method = "static"
from = "dense"
recipe = "static"
epochs = 1
each = [0.5]
[[stage]]
method = "specialist"
from = "scored"
recipe = "recover"
each = [0.3]
"""
ALL = """
[[stage]]
method = "order"
from = "dense"
score = "random"
nested = true
keep = 1
[[stage]]
method = "repaired"
from = "dense"
score = "random"
nested = true
repair = true
[[stage]]
method = "nested"
from = "repaired"
recipe = "nested"
epochs = 1
sweep = false
"""


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    home = tmp_path_factory.mktemp("asked")
    texts = folder(home / "texts", train=60)
    plans = [
        parse_experiment(STUDY.replace("UNITS", "") + HEADS, texts),
        parse_experiment(STUDY.replace("UNITS", 'units = "all"') + ALL, texts),
    ]
    stages = {stage.method: stage for plan in plans for stage in plan.stages}
    for stage in stages.values():
        produce(stage, home / "runs")
    return home, stages


def place_of(studies, method):
    home, stages = studies
    return checkpoint_folder(stages[method], home / "runs")


@pytest.mark.parametrize(
    ("method", "form", "floor", "lowest"),
    [
        ("scored", "hard", 1, 0.4),
        ("budgeted", "soft", 1, 0.25),
        ("swept", "soft", 0, 0.1),
        ("adapted", "hard", 1, 0.25),
        ("static", "soft", 0, 0.5),
        ("order", "nested", 1, 0.4),
        ("repaired", "nested", 0, min(REPAIRED_AT)),
        ("nested", "nested", 0, 0.125),
    ],
)
def test_a_stage_makes_a_model_for_what_its_tables_ask(studies, method, form, floor, lowest):
    home, stages = studies
    for model in (
        load(place_of(studies, method)).model,
        produce(stages[method], home / "runs").model,
    ):
        assert (model.form, model.floor, model.lowest) == (form, floor, lowest)


def test_an_old_folder_of_a_stage_is_asked_as_its_tables_do(studies):
    home, stages = studies
    path = place_of(studies, "scored") / MANIFEST
    before = path.read_text(encoding="utf-8")
    manifest = json.loads(before)
    for name in ("form", "floor", "lowest"):
        del manifest["elastic"][name]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    try:
        model = produce(stages["scored"], home / "runs").model
    finally:
        path.write_text(before, encoding="utf-8")
    assert (model.form, model.floor, model.lowest) == ("hard", 1, 0.4)


def test_a_specialist_may_be_cut_below_its_parents_tables(studies):
    specialist = load(place_of(studies, "specialist"))
    assert specialist.kept is not None and specialist.kept.cost <= 0.4
    assert all(specialist.kept.indices(layer, "heads") for layer in range(2))


@pytest.mark.parametrize("method", ["scored", "budgeted", "adapted", "order", "nested"])
def test_every_command_keeps_the_same_units(studies, method, tmp_path, capsys):
    home, stages = studies
    place, data = str(place_of(studies, method)), ["--data", str(home / "texts")]
    model = load(place).model
    measured = run_stage(stages[method], home / "runs")
    (point,) = [
        r
        for r in measured
        if r["kind"] == "point"
        and r["budget"] == 0.4
        and r["form"] != "soft"
        and not (method in ("budgeted", "adapted") and r["form"] == "cut")
    ]
    kept = model.allocation(0.4, stages[method].floor)
    assert point["cost"] == pytest.approx(kept.cost, abs=1e-6)
    if method == "scored":
        assert kept != model.allocation(0.4, floor=0)  # or the test would say nothing

    _, out, _ = run(capsys, "inspect", place, "-b", "0.4", "--json")
    inspected = json.loads(out)
    assert inspected["budgets"][0]["kept"] == kept.to_dict()
    assert (inspected["form"], inspected["floor"]) == (model.form, model.floor)

    half = tmp_path / "half"
    assert run(capsys, "cut", place, "-b", "0.4", "--out", str(half))[0] == 0
    smaller = load(half)
    assert smaller.kept == kept and smaller.notes["cut"]["floor"] == model.floor

    words = ["sweep", place, *data, "-b", "0.4", "--json"]
    _, out, _ = run(capsys, *words)
    swept = [p for p in json.loads(out)["points"] if p["form"] != "soft"]
    assert [p["cost"] for p in swept] == [kept.cost]
    assert swept[0]["accuracy"] == pytest.approx(point["accuracy"], abs=1e-6)

    words = ["bench", place, *data, "-b", "0.4", "--repeats", "5", "--batch", "2", "--json"]
    _, out, _ = run(capsys, *words)
    macs = {r["form"]: r["macs"] for r in json.loads(out)}
    assert macs["cut"] == macs["skip"] == count_macs(smaller.model, 20)

    texts = str(home / "texts" / "test.csv")
    _, whole, _ = run(capsys, "predict", place, texts, "-b", "0.4")
    _, cut, _ = run(capsys, "predict", str(half), texts)
    assert len(whole.splitlines()) == 31
    for one, other in zip(whole.splitlines()[1:], cut.splitlines()[1:], strict=True):
        assert one.split(",")[:2] == other.split(",")[:2]
        likely = [[float(p) for p in line.split(",")[2:]] for line in (one, other)]
        assert likely[0] == pytest.approx(likely[1], abs=1e-5)
    served = Skipping(model).at(0.4).state_dict()
    weights = smaller.model.state_dict()
    assert sorted(tuple(v.shape) for v in served.values()) == sorted(
        tuple(v.shape) for v in weights.values()
    )


@pytest.mark.parametrize(
    "command", ["inspect", "cut", "sweep", "bench", "predict", "predict --soft"]
)
def test_every_command_names_the_smallest_budget(studies, command, tmp_path, capsys):
    home, _ = studies
    verb, *options = command.split()
    place = str(place_of(studies, "budgeted"))
    given = {
        "cut": ["--out", str(tmp_path / "x")],
        "sweep": ["--data", str(home / "texts")],
        "bench": ["--data", str(home / "texts")],
        "predict": [str(home / "texts" / "test.csv")],
    }
    words = [verb, place, *given.get(verb, []), "-b", "0.2", *options]
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert "budget 0.2 is below" in err and "the smallest is 0.25" in err


def test_soft_answers_of_a_nested_model_are_refused(studies, tmp_path, capsys):
    home, _ = studies
    place, texts = str(place_of(studies, "nested")), str(home / "texts" / "test.csv")
    code, out, err = run(capsys, "predict", place, texts, "-b", "0.5", "--soft")
    assert (code, out) == (2, "") and "nested model" in err
    words = ["sweep", place, "--data", str(home / "texts"), "-b", "0.5", "--form", "soft"]
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and "nested model" in err


def test_without_budgets_the_commands_ask_for_those_that_it_was_made_for(studies, capsys):
    home, _ = studies
    data = ["--data", str(home / "texts"), "--json"]
    asked = {}
    for method in ("nested", "swept", "static"):
        place = str(place_of(studies, method))
        code, out, _ = run(capsys, "sweep", place, *data)
        assert code == 0
        budgets = [p["budget"] for p in json.loads(out)["points"]]
        code, out, _ = run(capsys, "inspect", place, "--json")
        assert code == 0
        asked[method] = min(budgets), min(b["budget"] for b in json.loads(out)["budgets"])
    assert asked == {"nested": (0.125, 0.25), "swept": (0.1, 0.25), "static": (0.5, 0.5)}


def test_inspect_says_how_a_model_is_asked(studies, capsys):
    _, out, _ = run(capsys, "inspect", str(place_of(studies, "order")))
    words = " ".join(out.split())
    assert "hard masks, by one order for all budgets" in words
    assert "budgets from 0.4 up; at least 1 of each kind" in words
    _, out, _ = run(capsys, "inspect", str(place_of(studies, "nested")), "--json")
    assert all(budget["cost_soft"] is None for budget in json.loads(out)["budgets"])


def test_a_soft_answer_at_a_budget_is_the_models(studies, capsys):
    home, _ = studies
    place, texts = place_of(studies, "budgeted"), str(home / "texts" / "test.csv")
    _, out, _ = run(capsys, "predict", str(place), texts, "-b", "0.5", "--soft")
    loaded = load(place)
    first = (home / "texts" / "test.csv").read_text(encoding="utf-8").splitlines()[1]
    ids = torch.tensor(loaded.words.encode([first.split(",")[1]]))
    with torch.no_grad():
        likely = loaded.model(ids, budget=0.5).softmax(dim=-1)[0].tolist()
    shown = [float(p) for p in out.splitlines()[1].split(",")[2:]]
    assert shown == pytest.approx(likely, abs=1e-5)


def test_soft_gates_of_a_nested_model_can_not_be_timed():
    nested = ALL.replace("sweep = false", "latency = true")
    study = STUDY.replace("UNITS", "").replace("[timing]", '[timing]\nforms = ["soft", "cut"]')
    with pytest.raises(ValueError, match="'nested' is nested"):
        parse_experiment(study + nested)
