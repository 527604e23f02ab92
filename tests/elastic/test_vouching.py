"""What a converted model vouches for, and what it then refuses."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from apportion.data.marked import Marked
from apportion.elastic.conversion import convert
from apportion.elastic.elastic import Elastic
from apportion.elastic.evaluation import evaluate
from apportion.elastic.vouching import asking, bounds, vouch
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.training.loop import fit
from apportion.training.recipes import DENSE


@pytest.fixture(scope="module")
def task():
    return Marked(length=12, values=4, distractors=2, train=256, validation=400, test=64).build()


@pytest.fixture(scope="module")
def dense(task):
    torch.manual_seed(3)
    shape = {"layers": 2, "heads": 4, "hidden": 32, "feedforward": 64}
    encoder = Encoder(EncoderConfig(task.vocabulary, task.length, **shape))
    return fit(encoder, task, recipe=DENSE.with_changes(epochs=6, batch_size=32), seed=1).model


@pytest.mark.parametrize(("agreed", "rows"), [(200, 200), (190, 200), (0, 200), (730, 744)])
def test_the_bound_is_that_of_the_exact_interval(agreed, rows):
    low = stats.beta.ppf(0.025, agreed, rows - agreed + 1) if agreed else 0.0
    high = stats.beta.ppf(0.975, agreed + 1, rows - agreed) if agreed < rows else 1.0
    assert bounds(agreed, rows) == pytest.approx((low, high))


def test_the_range_begins_where_every_budget_agrees(task, dense):
    made = convert(dense, task, agreement=0.9)
    told = made.facts["vouched"]
    assert told["rows"] == 400 - 134, "rows that neither search nor repair saw"
    bottom = told.get("from", 1.0)
    assert made.model.lowest == bottom
    passed = [float(b) for b, (_, bound) in told["agreement"].items() if bound >= 0.9]
    assert all(b in passed for b in map(float, told["agreement"]) if b >= bottom)
    if bottom > 0.125:
        with pytest.raises(ValueError, match=f"{bottom:g}"):
            evaluate(made.model, task.test, budget=0.125)


def test_agreement_is_with_the_model_as_it_was_given(task, dense):
    model = Elastic(dense, length=task.length).nested().eval()
    told = vouch(model, task.validation, whole=dense, budgets=(0.25, 1.0))
    assert told["agreement"]["1"][0] == 1.0
    torch.manual_seed(9)
    other = Encoder(dense.config)
    told = vouch(model, task.validation, whole=other, budgets=(1.0,))
    assert told["agreement"]["1"][0] < 0.9 and "from" not in told


def test_few_rows_vouch_for_nothing_and_rule_out_what_breaks(task, dense):
    few = task.validation.take(torch.arange(90))
    made = convert(dense, task, held_out=few)
    told = made.facts["vouched"]
    assert told["rows"] == 45, "half of few rows choose, the others are asked"
    possible = {
        float(budget): bounds(round(45 * share), 45)[1] >= 0.95
        for budget, (share, _) in told["agreement"].items()
    }
    bottom = told.get("from", 1.0)
    assert made.model.lowest == bottom
    assert all(possible[budget] for budget in possible if budget >= bottom)
    below = [budget for budget in possible if budget < bottom]
    assert not below or not possible[max(below)]


def test_one_row_of_ten_that_differs_rules_no_budget_out():
    shares = {"0.25": [0.9, 0.55], "0.5": [1.0, 0.69], "1": [1.0, 0.69]}
    assert asking({"rows": 10, "agreement": shares}, 0.95)["from"] == 0.25
    shares["0.25"] = [0.5, 0.18]
    assert asking({"rows": 10, "agreement": shares}, 0.95)["from"] == 0.5
    # As many as can vouch for a budget have to.
    assert "from" not in asking({"rows": 200, "agreement": shares}, 0.95)


def test_an_agreement_is_a_share(task, dense):
    with pytest.raises(ValueError, match="between 0 and 1"):
        convert(dense, task, agreement=1.0)
