"""A teacher is asked once about views of texts; budgets learn from what it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from pretrained import tokenizer, write_classifier
from texts import CLUES, folder, rows, write
from transformers import AutoModelForSequenceClassification

from apportion.data.task import Split
from apportion.data.text import Text
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import weights_digest
from apportion.elastic.elastic import Elastic
from apportion.training.averaging import Average
from apportion.training.loop import fit
from apportion.training.recipes import NESTED_ENCODER, RECOVER_ENCODER, recipe
from apportion.training.schedule import draw_budgets, parameter_groups
from apportion.training.transfer import fit_temperature, transfer

SHORT = NESTED_ENCODER.with_changes(epochs=2, batch_size=32, lr=1e-3)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    home = folder(tmp_path_factory.mktemp("texts"), train=96, test=30)
    write(home / "unlabelled.csv", [(text,) for _, text in rows(40, 900)], header=("text",))
    spec = Text(str(home), train=60, validation=24, test=30, length=20, unlabelled=40)
    return spec.build(Tokenizer.of(tokenizer(), 20))


@pytest.fixture(scope="module")
def teacher(task, tmp_path_factory):
    home = write_classifier(tmp_path_factory.mktemp("model"), list(CLUES))
    return AutoModelForSequenceClassification.from_pretrained(home).eval()


@pytest.fixture(scope="module")
def student(task, teacher):
    return Elastic(teacher, ("heads", "feedforward"), length=20, block=16).nested()


@pytest.fixture
def asked(monkeypatch):
    """How many rows a teacher was asked about, by its number of calls."""
    counts = Counter()
    inside = transfer.__globals__["logits_of"]

    def counting(output):
        logits = inside(output)
        counts["rows"] += len(logits)
        return logits

    monkeypatch.setitem(transfer.__globals__, "logits_of", counting)
    return counts


def same(one, other):
    return weights_digest(one) == weights_digest(other)


def test_all_texts_are_asked_about_in_every_view(task, teacher):
    made = transfer(teacher, task, count=3, seed=5, accelerator=Accelerator(cpu=True))
    assert len(made) == 60 + 40 and len(made.views) == len(made.answers) == 3
    inputs, _ = made.views[1].batch(torch.arange(100))
    with torch.no_grad():
        torch.testing.assert_close(teacher(**inputs).logits, made.answers[1], atol=1e-4, rtol=1e-4)
    assert not torch.equal(made.answers[0], made.answers[1])
    assert bool((made.views[0].labels == -1).all()), "nobody's label is known there"


def test_answers_are_computed_once_and_kept(task, teacher, student, asked, tmp_path):
    kept = tmp_path / "answers.safetensors"
    uncalibrated = SHORT.with_changes(calibrated=False)
    first = fit(student, task, recipe=uncalibrated, seed=3, teacher=teacher, answers=kept)
    assert asked["rows"] == 2 * 100
    again = fit(student, task, recipe=uncalibrated, seed=3, teacher=teacher, answers=kept)
    assert asked["rows"] == 2 * 100 and same(first.model, again.model)
    other = type(teacher)(teacher.config).eval()
    fit(student, task, recipe=uncalibrated, seed=3, teacher=other, answers=kept)
    assert asked["rows"] == 4 * 100, "another teacher's answers are not taken"
    kept.write_bytes(kept.read_bytes()[:-40])
    fit(student, task, recipe=uncalibrated, seed=3, teacher=other, answers=kept)
    assert asked["rows"] == 6 * 100, "half of a file is made again"


def test_training_labels_are_not_read(task, teacher, student):
    wrong = replace(task, train=replace(task.train, labels=task.train.labels.flip(0)))
    first, second = (fit(student, t, recipe=SHORT, seed=3, teacher=teacher) for t in (task, wrong))
    assert same(first.model, second.model)


def test_texts_without_labels_are_learned_from(task, teacher, student):
    bare = replace(task, unlabelled=None)
    ticks = []
    more = fit(student, task, recipe=SHORT, seed=3, teacher=teacher, progress=ticks.append)
    assert [t.steps for t in ticks if t.recipe == "nested"][-1] == 2 * 4  # 100 rows, 32 a step
    assert not same(more.model, fit(student, bare, recipe=SHORT, seed=3, teacher=teacher).model)


@pytest.mark.parametrize("steps", [5])
def test_a_run_that_was_stopped_ends_with_the_same_average(task, teacher, student, tmp_path, steps):
    def stop(tick):
        if tick.recipe == "nested" and tick.step == steps:
            raise InterruptedError

    options = {"recipe": SHORT, "seed": 3, "teacher": teacher, "save_every": 0.0}
    state = tmp_path / "state"
    with pytest.raises(InterruptedError):
        fit(student, task, state=state, progress=stop, **options)
    whole = fit(student, task, **options)
    assert same(whole.model, fit(student, task, state=state, **options).model)


def test_what_is_kept_is_the_average_of_the_last_epoch(task, teacher, student):
    plain = SHORT.with_changes(average=0.0)
    averaged, last = (
        fit(student, task, recipe=how, seed=3, teacher=teacher) for how in (SHORT, plain)
    )
    assert averaged.best == averaged.history[-1]
    assert not same(averaged.model, last.model)


def test_an_average_follows_its_weights():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    average = Average(model, 0.9)
    torch.nn.init.ones_(model.weight)
    expected = 0.0
    for step in range(200):
        average.follow(step)
        expected += (1 - min(0.9, (step + 1) / (step + 10))) * (1 - expected)
    assert float(average.weights["weight"]) == pytest.approx(expected)
    with average.in_place():
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == 1.0


def test_a_specialist_learns_from_the_same_answers(task, teacher, asked, tmp_path):
    short = RECOVER_ENCODER.with_changes(epochs=1, batch_size=32, calibrated=False)
    fitted = fit(
        teacher, task, recipe=short, seed=3, teacher=teacher, answers=tmp_path / "a.safetensors"
    )
    assert asked["rows"] == 2 * 100 and fitted.history[0].train_loss < 0.1


class Sure(torch.nn.Module):
    """A teacher with these answers, so many times as sure as it should be."""

    def __init__(self, logits, factor):
        super().__init__()
        self.logits = torch.nn.Parameter(logits * factor)

    def forward(self, row):
        return self.logits[row]


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_a_teacher_that_is_too_sure_is_cooled_and_one_that_is_shy_is_heated(factor):
    generator = torch.Generator().manual_seed(2)
    logits = 2.0 * torch.randn(4000, 3, generator=generator)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    split = Split({"row": torch.arange(4000)}, labels)
    T = fit_temperature(Sure(logits, factor), split)
    assert pytest.approx(factor, rel=0.1) == T


def test_a_teacher_that_is_always_right_speaks_as_it_does():
    """The likelihood of right answers grows for ever as the temperature falls."""
    logits = torch.eye(3).repeat(10, 1)
    split = Split({"row": torch.arange(30)}, logits.argmax(dim=1))
    assert fit_temperature(Sure(logits, 1.0), split) == 1.0


def test_one_budget_a_step_takes_the_ends_at_times_and_small_ones_as_often_as_large():
    drawn = [draw_budgets(NESTED_ENCODER, 1, step) for step in range(4000)]
    assert all(len(budgets) == 1 for budgets in drawn)
    budgets = torch.tensor(drawn).flatten()
    for end in (0.125, 1.0):
        assert float((budgets == end).float().mean()) == pytest.approx(0.15, abs=0.02)
    between = budgets[(budgets > 0.125) & (budgets < 1.0)]
    small, large = ((between < 0.25).sum(), (between > 0.5).sum())
    assert float(small / large) == pytest.approx(1.0, abs=0.15)
    assert drawn == [draw_budgets(NESTED_ENCODER, 1, step) for step in range(4000)]


def test_the_readout_has_a_rate_of_its_own(teacher, student):
    dense = recipe("dense-encoder")
    for model in (teacher, student):
        how = dense if model is teacher else NESTED_ENCODER.with_changes(readout_rate=20.0)
        groups = parameter_groups(model, how)
        rates = {id(p): group["lr"] for group in groups for p in group["params"]}
        inside = getattr(model, "model", model)
        assert rates[id(inside.classifier.weight)] == pytest.approx(20 * how.lr)
        assert rates[id(inside.bert.pooler.dense.bias)] == pytest.approx(20 * how.lr)
        assert rates[id(inside.bert.encoder.layer[0].output.dense.weight)] == how.lr
        assert rates[id(inside.bert.embeddings.word_embeddings.weight)] == how.lr


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"alpha": 0.5}, "views are learned from the teacher alone"),
        ({"word_dropout": 0.1}, "views are learned from the teacher alone"),
        ({"views": -1}, "views must not be negative"),
        ({"average": 1.0}, "average must be in"),
        ({"readout_rate": 0.0}, "readout_rate must be positive"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        NESTED_ENCODER.with_changes(**changes)


def test_views_need_texts_and_a_plain_teacher(task, teacher, student):
    for wrong in (None, student):
        with pytest.raises(ValueError, match="a plain teacher to ask"):
            fit(student, task, recipe=SHORT, seed=3, teacher=wrong)
    with pytest.raises(ValueError, match="has views: texts"):
        fit(student, replace(task, words=None), recipe=SHORT, seed=3, teacher=teacher)
