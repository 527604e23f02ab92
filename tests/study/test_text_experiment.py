"""A whole study on texts, as small as it gets."""

from __future__ import annotations

import statistics

import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from texts import folder
from witnesses import Quiet

from apportion.data.text import Text
from apportion.study.driver import local_driver as driver
from apportion.study.experiment import parse_experiment, read_experiment
from apportion.study.measuring import run_stage
from apportion.study.production import new_encoder
from apportion.study.report.claim_tables import goal_table
from apportion.study.report.page import write_page
from apportion.study.report.query import select
from apportion.study.report.study_tables import study_tables
from apportion.training.loop import fit
from apportion.training.recipes import DENSE, recipe
from apportion.training.schedule import drop_words, row_order

STUDY = """
name = "study"
budgets = [0.5, 0.75]
[task]
kind = "text"
data = "somebody/texts"
length = 20
train = 60
validation = 24
test = 15
min_count = 1
[model]
layers = 2
heads = 2
hidden = 16
feedforward = 32
pool = "mean"
[seeds]
data = [7, 13]
optimisation = [7, 13]
paired = true
[[stage]]
method = "tfidf"
baseline = "tfidf-logistic"
[[stage]]
method = "dense"
recipe = "dense"
epochs = 2
word_dropout = 0.2
[[stage]]
method = "budgeted"
from = "dense"
teacher = "dense"
recipe = "budgeted"
epochs = 1
latency = true
[[stage]]
method = "static"
from = "dense"
recipe = "static"
epochs = 1
each = [0.5, 0.75]
latency = true
[[stage]]
method = "static-adapted"
from = "static"
teacher = "static"
recipe = "adapt"
each = [0.5]
[[row]]
name = "TF-IDF"
method = "tfidf"
form = "baseline"
budget = 1.0
[[row]]
name = "Adapted"
method = "static-adapted"
form = "hard"
budget = 0.5
table = "adaptation"
[[claim]]
says = "dense against words"
method = "dense"
form = "dense"
against = "tfidf"
against_form = "baseline"
at_least = -100.0
[[claim]]
says = "above itself"
method = "dense"
form = "dense"
against = "dense"
at_least = 0.0
[[claim]]
says = "impossible"
method = "budgeted"
form = "soft"
budget = 0.5
against = "dense"
at_least = 200.0
[[claim]]
says = "skip against cut"
measure = "speedup"
method = "budgeted"
form = "skip"
budget = 0.5
against = "budgeted"
against_form = "cut"
against_budget = 0.5
ratio = true
at_least = 0.01
[[claim]]
says = "predict"
measure = "throughput"
method = "budgeted"
budget = 0.5
at_least = 10000.0
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    home = tmp_path_factory.mktemp("study")
    (home / "study.toml").write_text(STUDY)
    plan = read_experiment(home / "study.toml", folder(home / "data"))
    have = driver.run(plan, home / "runs", results=home / "study.jsonl", watcher=Quiet())
    return home, plan, have


def test_paired_seeds_draw_their_own_rows(ran):
    _, plan, have = ran
    assert {(s.task.seed, s.seed) for s in plan.stages} == {(7, 7), (13, 13)}
    assert len(plan.stages) == 2 * (1 + 1 + 1 + 2 + 1)
    assert len({r["data"] for r in select(have, kind="stage")}) == 2


def test_a_specialist_is_adapted_from_the_specialist_of_its_budget(ran):
    _, plan, _ = ran
    (adapted, _) = plan.stages_of("static-adapted")
    assert adapted.parent.only == adapted.teacher.only == adapted.only == 0.5
    assert adapted.parent.seed == adapted.seed


def test_where_the_texts_lie_does_not_change_what_a_stage_is(ran):
    _, plan, _ = ran
    elsewhere = parse_experiment(STUDY)
    assert [s.key for s in elsewhere.stages] == [s.key for s in plan.stages]


def test_the_baseline_stands_in_the_same_table(ran):
    """Its accuracy is that of scikit-learn on the same rows, with the numbers that it chose."""
    _, plan, have = ran
    points = {p["seed"]: p for p in select(have, kind="point", method="tfidf")}
    assert set(points) == {7, 13}
    for stage in plan.stages_of("tfidf"):
        task, point = stage.task.build(), points[stage.seed]
        words = TfidfVectorizer(ngram_range=tuple(point["chosen"]["ngrams"]))
        model = LogisticRegression(C=point["chosen"]["C"], max_iter=1000)
        model.fit(words.fit_transform(task.train.texts), task.train.labels)
        accuracy = model.score(words.transform(task.test.texts), task.test.labels)
        assert point["accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert accuracy > 0.8
    tables = {table.name: table for table in study_tables(plan, have)}
    (row,) = tables["core"].rows
    accuracies = [100 * p["accuracy"] for p in points.values()]
    spread = f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}"
    assert dict(zip(tables["core"].columns, row, strict=True)) == {
        "method": "TF-IDF",
        "budget": "1.00",
        "evaluated": "baseline",
        "n": "2",
        "cost": "–",
        "accuracy": spread,
        "lowest": f"{min(accuracies):.2f}",
    }
    assert [row[:4] for row in tables["adaptation"].rows] == [("Adapted", "0.50", "hard", "2")]
    assert [row[0] for row in tables["data"].rows] == ["train", "validation", "test"]


def test_both_protocols_are_timed_for_the_knob_and_the_specialists(ran):
    _, plan, have = ran
    found = select(have, kind="latency")
    assert {r["protocol"] for r in found} == {"padded", "grouped"}
    for r in found:
        assert r["rows"] == 15
        assert (r["tokens"] == 20) == (r["protocol"] == "padded")
    tables = {table.name: table for table in study_tables(plan, have)}
    rows = {row[:3] for row in tables["protocol"].rows}
    for method, budget in (("budgeted", "0.50"), ("static", "0.50"), ("static", "0.75")):
        for form in ("soft gates", "hard skip", "cut model"):
            assert (method, form, budget) in rows
    assert ("dense", "all open", "1.00") in rows
    assert "latency" not in tables  # that one is of tasks whose rows are all alike
    assert [row[0] for row in tables["throughput"].rows] == ["0.50", "0.75"]


def test_goals_may_be_relative(ran):
    _, plan, have = ran
    met = {row[0]: row[-1] for row in goal_table(plan, have).rows}
    assert met == {
        "dense against words": "yes",
        "above itself": "yes",
        "impossible": "no",
        "skip against cut": "yes",
        "predict": "no",
    }
    asked = {row[0]: row[1] for row in goal_table(plan, have).rows}
    assert asked["dense against words"] == ("accuracy of dense minus tfidf baseline at 1.00 ≥ -100")


def test_a_goal_is_open_while_what_it_is_compared_with_has_not_run(ran):
    _, plan, have = ran
    early = [record for record in have if record["method"] != "tfidf"]
    (row, *_) = goal_table(plan, early).rows
    assert row[2] == "tfidf was measured in 0 of 2 runs" and row[-1] == "not yet"


def test_a_model_of_other_rows_is_not_measured_on_these(ran, tmp_path):
    """Without a digest in the file, the name of the data is all that a stage's key knows of it."""
    home, plan, _ = ran
    other = read_experiment(home / "study.toml", folder(tmp_path / "other", train=150))
    stage = other.stages_of("dense")[0]
    assert stage.key == plan.stages_of("dense")[0].key
    with pytest.raises(ValueError, match="was trained on other rows"):
        run_stage(stage, home / "runs")


def test_more_test_rows_measure_again_and_train_nothing(ran):
    home, plan, have = ran
    wider = parse_experiment("test_rows = 30\n" + STUDY, home / "data")
    stage, before = wider.stages_of("dense")[0], plan.stages_of("dense")[0]
    assert stage.key == before.key and not driver.is_done(stage, have)
    task = before.build_task()
    assert set(stage.measured_on(task).test.texts) > set(task.test.texts)
    (point, done) = run_stage(stage, home / "runs")
    assert (point["rows"], done["facts"]["splits"]["test"]["rows"]) == (30, 30)
    (old,) = [r for r in have if r["kind"] == "stage" and r["stage"] == stage.key]
    assert done["weights"] == old["weights"] and done["training"] == old["training"]


def test_more_test_rows_are_never_training_rows(tmp_path):
    data = folder(tmp_path / "data")
    (data / "test.csv").unlink()  # test rows come out of the training file
    stage = parse_experiment("test_rows = 30\n" + STUDY, data).stages_of("dense")[0]
    with pytest.raises(ValueError, match="a test file of its own"):
        stage.measured_on(stage.build_task())


def test_the_page_of_a_text_study_is_written(ran, tmp_path):
    _, plan, have = ran
    write_page(plan, have, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Texts of somebody/texts, up to 20 words of each; 60 / 24 / 15 training" in page


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('data = "somebody/texts"', "", "needs data"),
        ("length = 20", "folder = 'x'", "has no folder"),
        ('baseline = "tfidf-logistic"', 'baseline = "magic"', "unknown baseline 'magic'"),
        ('baseline = "tfidf-logistic"', 'score = "random"\nbaseline = "x"', "needs one of"),
        ("optimisation = [7, 13]", "optimisation = [7]", "as many seeds"),
        ("each = [0.5]", "each = [0.25]", "'static', which is not one earlier stage"),
        ("word_dropout = 0.2", "word_dropout = 2.0", "word_dropout must be in"),
        ('from = "dense"', 'from = "tfidf"', "a baseline without a model"),
        ('against = "tfidf"', 'against = "nobody"', "is of 'nobody', which is no stage"),
        ("ratio = true", 'protocol = "single"', "protocol must be 'padded' or 'grouped'"),
        ('name = "study"', 'name = "study"\ntest_rows = 1', "test_rows are two or more texts"),
        ("train = 60", 'train = "many"', "train must be a whole number or nothing, not 'many'"),
    ],
)
def test_a_mistake_in_a_text_study_is_named(before, after, says):
    assert before in STUDY
    with pytest.raises(ValueError, match=says):
        parse_experiment(STUDY.replace(before, after, 1))


def test_a_batch_holds_rows_of_like_length_and_an_epoch_every_row():
    lengths = torch.randint(1, 128, (1003,), generator=torch.Generator().manual_seed(1))
    order = row_order(7, 0, 1003, lengths, 16)
    assert sorted(order.tolist()) == list(range(1003))
    padding = sum(int(lengths[rows].max()) * len(rows) for rows in torch.split(order, 16))
    alike = row_order(7, 0, 1003, None, 16)
    plain = sum(int(lengths[rows].max()) * len(rows) for rows in torch.split(alike, 16))
    assert padding < 1.1 * int(lengths.sum()) < 0.7 * plain
    assert not torch.equal(order, row_order(7, 1, 1003, lengths, 16))


def test_dropped_words_become_unknown_and_padding_stays():
    ids = torch.arange(2, 202).view(2, 100)
    mask = torch.ones(2, 100, dtype=torch.bool)
    mask[1, 50:] = False
    noisy = drop_words({"input_ids": ids, "attention_mask": mask}, 0.3, 1)["input_ids"]
    changed = noisy != ids
    assert not changed[1, 50:].any()
    assert 0.15 < float(changed[mask].float().mean()) < 0.45
    assert (noisy[changed] == 1).all()
    marked = drop_words({"input_ids": ids, "attention_mask": mask}, 1.0, 1, marks=(2, 5))
    assert marked["input_ids"][0, :5].tolist() == [2, 1, 1, 5, 1]
    numbers = drop_words({"input_ids": ids, "attention_mask": mask.long()}, 1.0, 1)["input_ids"]
    assert torch.equal(numbers, ids.masked_fill(mask, 1))


def test_a_teacher_may_read_the_same_noise(tmp_path):
    text = Text(str(folder(tmp_path)), length=20).build()
    read = []

    class Teacher(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            read.append(input_ids.clone())
            return torch.zeros(len(input_ids), len(text.classes))

    seen = []
    student = new_encoder(text, {"layers": 1, "heads": 2, "hidden": 16, "feedforward": 16}, 1)
    student.register_forward_pre_hook(
        lambda _m, _a, given: seen.append(given["input_ids"].clone()), with_kwargs=True
    )
    for noisy in (False, True):
        read.clear()
        seen.clear()
        how = recipe("recover", batch_size=64, word_dropout=0.5, noisy_teacher=noisy)
        fit(student, text, recipe=how, seed=1, teacher=Teacher())
        same = [torch.equal(a, b) for a, b in zip(read, seen, strict=False)]
        assert same[0] == noisy


def test_training_on_texts_goes_on_to_the_same_weights(tmp_path, task):
    text = Text(str(folder(tmp_path / "data")), length=12, train=60, validation=24).build()
    shape = {"layers": 1, "heads": 2, "hidden": 16, "feedforward": 16, "dropout": 0.1}
    recipe = DENSE.with_changes(epochs=2, batch_size=16, word_dropout=0.3)
    model = new_encoder(text, shape, 3)
    whole = fit(model, text, recipe=recipe, seed=3).model

    def kill(tick):
        if tick.step == 5:
            raise KeyboardInterrupt

    state = tmp_path / "state"
    with pytest.raises(KeyboardInterrupt):
        fit(model, text, recipe=recipe, seed=3, state=state, save_every=0, progress=kill)
    again = fit(model, text, recipe=recipe, seed=3, state=state).model
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="drops words, and task 'marked' has none"):
        fit(new_encoder(task, shape, 3), task, recipe=recipe, seed=3)


@pytest.mark.parametrize("asked", ['test_rows = "all"', "test_rows = 21\ntest_seed = 3"])
def test_every_seed_is_measured_on_the_same_test_rows_in_the_same_order(tmp_path, asked):
    data = folder(tmp_path / "data")
    stages = parse_experiment(f"{asked}\n{STUDY}", data).stages_of("dense")
    plain = parse_experiment(STUDY, data).stages_of("dense")
    tasks = [stage.build_task() for stage in stages]
    measured = [stage.measured_on(task) for stage, task in zip(stages, tasks, strict=True)]
    assert tasks[0].test.texts != tasks[1].test.texts  # each drew its own
    assert measured[0].test.texts == measured[1].test.texts
    whole = Text(str(data), length=20).build().test
    assert len(measured[0].test) == (21 if "21" in asked else len(whole))
    assert set(measured[0].test.texts) <= set(whole.texts)
    for task, wider in zip(tasks, measured, strict=True):
        assert wider.train.digest() == task.train.digest()
        assert wider.facts["splits"]["train"] == task.facts["splits"]["train"]
        assert wider.facts["splits"]["test"]["rows"] == len(wider.test)
    assert [stage.key for stage in stages] == [stage.key for stage in plain]  # none trains again
    assert not {stage.measures for stage in stages} & {stage.measures for stage in plain}


def test_all_test_rows_are_never_training_rows(tmp_path):
    data = folder(tmp_path / "data")
    (data / "test.csv").unlink()
    stage = parse_experiment('test_rows = "all"\n' + STUDY, data).stages_of("dense")[0]
    with pytest.raises(ValueError, match="a test file of its own"):
        stage.measured_on(stage.build_task())


def test_a_study_of_recipes_is_measured_on_validation_rows(tmp_path):
    data = folder(tmp_path / "data")
    stage = parse_experiment('test_rows = "validation"\n' + STUDY, data).stages_of("dense")[0]
    task = stage.build_task()
    measured = stage.measured_on(task)
    assert measured.test.texts == task.validation.texts != task.test.texts
    assert measured.train.digest() == task.train.digest()
    assert stage.key == parse_experiment(STUDY, data).stages_of("dense")[0].key


def test_a_test_seed_is_part_of_what_is_measured():
    asked = ["test_rows = 30", "test_rows = 30\ntest_seed = 0", "test_rows = 30\ntest_seed = 1"]
    found = [parse_experiment(f"{keys}\n{STUDY}").stages[0].measures for keys in asked]
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ('test_rows = "some"', 'two or more texts, "all" or "validation", not \'some\''),
        ("test_seed = 1", "does not say how many"),
        ('test_rows = "all"\ntest_seed = 1', "draws a number of test_rows, not all by seed 1"),
        ("test_rows = 30\nanswers = true", "answers needs the same test rows for all data seeds"),
    ],
)
def test_test_rows_that_mean_nothing_are_refused(asked, says):
    with pytest.raises(ValueError, match=says):
        parse_experiment(f"{asked}\n{STUDY}")
