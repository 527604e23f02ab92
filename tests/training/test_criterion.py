"""What a task minimises and counts is its own: classification is only the first of its kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from conftest import TINY
from pretrained import write_classifier
from transformers import BertConfig, BertForSequenceClassification

from apportion.data.task import CLASSIFICATION, Split, Task
from apportion.elastic.checkpoint import Checkpoint, load, save
from apportion.elastic.elastic import Elastic
from apportion.elastic.evaluation import evaluate, sweep
from apportion.elastic.repairing import repair
from apportion.elastic.scoring import loss_increase, nest, squared_gradient
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.models.hub import load_model
from apportion.training.loop import fit
from apportion.training.recipes import BUDGETED, DENSE, NESTED

CLASSES = ["differ", "match"]


@dataclass(frozen=True)
class Near:
    """A number per row: squares are minimised, answers that are near enough are counted."""

    enough: float = 0.1

    def check(self, model):
        if model.config.classes != 1:
            raise ValueError("a regression has one output")

    def loss(self, logits, labels, *, reduction="mean"):
        return F.mse_loss(logits[:, 0], labels, reduction=reduction)

    def score(self, logits, labels):
        return (logits[:, 0] - labels).abs() < self.enough

    def divergence(self, student, teacher, *, T=1.0):
        return F.mse_loss(student, teacher)

    def agreement(self, student, teacher):
        return (student - teacher).abs().amax(dim=-1) < self.enough


def numbered(split: Split, enough: float = 0.1) -> Split:
    """Rows whose label is a number: how much of a row is one value."""
    labels = (split.inputs["input_ids"] == 3).float().mean(dim=1) * 4
    return replace(split, labels=labels, criterion=Near(enough))


@pytest.fixture
def regression(task) -> Task:
    splits = {name: numbered(task.split(name)) for name in ("train", "validation", "test")}
    return replace(task, name="numbers", classes=("number",), **splits)


@pytest.fixture
def one_output(task) -> Encoder:
    return Encoder(EncoderConfig(task.vocabulary, task.length, classes=1, **TINY)).eval()


def test_a_task_of_another_kind_is_trained_and_evaluated(regression, one_output):
    fitted = fit(one_output, regression, recipe=DENSE.with_changes(epochs=8, lr=5e-3), seed=1)
    outcome = evaluate(fitted.model, regression.test)
    with torch.no_grad():
        answers = fitted.model(**regression.test.inputs)[:, 0]
    apart = answers - regression.test.labels
    assert outcome.loss == pytest.approx(float(apart.square().mean()), rel=1e-4)
    assert outcome.accuracy == pytest.approx(float((apart.abs() < 0.1).float().mean()))
    assert outcome.loss < 0.5 * evaluate(one_output, regression.test).loss
    found = evaluate(fitted.model, regression.validation)
    assert (fitted.best.accuracy, fitted.best.objective) == pytest.approx(
        (found.accuracy, found.loss)
    )


def test_a_task_of_another_kind_is_scored_repaired_and_taught(regression, one_output):
    """With classes, a single output would have no gradient and agree with everything."""
    dense = fit(one_output, regression, recipe=DENSE.with_changes(epochs=8, lr=5e-3), seed=1).model
    elastic = Elastic(dense, ("heads", "feedforward"), length=regression.length, block=8)
    assert float(loss_increase(elastic, regression.validation).scores.abs().min()) > 0
    nested, scored = nest(elastic, lambda units: squared_gradient(units, regression.train))
    assert float(scored.scores.min()) > 0

    def apart(model):
        with torch.no_grad():
            answers = [m(**regression.test.inputs) for m in (model.cut(0.5).eval(), dense)]
        return float(F.mse_loss(*answers))

    repaired, facts = repair(nested, regression.train, held_out=regression.validation)
    assert facts["repair_share"] > 0 and apart(repaired) < apart(nested)
    alike = NESTED.with_changes(epochs=6, lr=3e-3, alpha=1.0)
    taught = fit(nested, regression, recipe=alike, seed=1, teacher=dense).model
    assert apart(taught) < apart(nested)
    soft = fit(elastic, regression, recipe=BUDGETED.with_changes(epochs=1), seed=1).model
    assert [p.outcome.rows for p in sweep(soft, regression.test, budgets=(0.5,))] == [64, 64]


def test_a_criterion_goes_with_its_rows_and_counts_for_their_digest(task):
    split = numbered(task.test)
    assert split.take(torch.arange(3)).criterion == split.criterion
    assert len({numbered(task.test, enough).digest() for enough in (0.1, 0.2)}) == 2
    assert replace(task.test, criterion=CLASSIFICATION).digest() == task.test.digest()


def bert(**changes) -> BertForSequenceClassification:
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=32, intermediate_size=32, max_position_embeddings=16, **shape, **changes
        )
    ).eval()


NO_CLASSIFIERS = {
    "one output of ours": lambda: Encoder(EncoderConfig(32, 12, classes=1, **TINY)).eval(),
    "one output": lambda: bert(num_labels=1),
    "regression": lambda: bert(num_labels=2, problem_type="regression"),
    "several labels": lambda: bert(num_labels=2, problem_type="multi_label_classification"),
}


@pytest.mark.parametrize("kind", NO_CLASSIFIERS)
def test_a_model_that_does_not_tell_classes_apart_is_refused_where_it_is_used(task, kind):
    model = NO_CLASSIFIERS[kind]()
    elastic = Elastic(model)
    nested = elastic.nested()
    for use in (
        lambda: fit(model, task, recipe=DENSE, seed=1),
        lambda: fit(elastic, task, recipe=BUDGETED, seed=1),
        lambda: evaluate(model, task.test),
        lambda: evaluate(elastic, task.test, budget=0.5),
        lambda: loss_increase(elastic, task.validation),
        lambda: squared_gradient(elastic, task.train),
        lambda: repair(nested, task.train),
        lambda: Checkpoint(model).classes,
    ):
        with pytest.raises(ValueError, match="needs one output per class, two at least"):
            use()
    elastic.cut(0.5)  # which needs no labels


def test_a_folder_that_does_not_tell_classes_apart_has_none_to_predict(tmp_path):
    folder = tmp_path / "saved"
    save(bert(num_labels=1), folder)
    with pytest.raises(ValueError, match="the model has 1 output and problem_type None"):
        _ = load(folder).classes


def test_a_new_head_leaves_behind_what_the_old_one_was_for(tmp_path):
    home = write_classifier(tmp_path / "theirs", ["a", "b", "c"])
    config = home / "config.json"
    kind = '"problem_type": "multi_label_classification", "model_type"'
    config.write_text(config.read_text().replace('"model_type"', kind))
    CLASSIFICATION.check(load_model(str(home), CLASSES, seed=1))
    with pytest.raises(ValueError, match="multi_label"):
        CLASSIFICATION.check(load_model(str(home), ["a", "b", "c"], seed=1))
