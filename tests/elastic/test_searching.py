"""What small budgets keep is searched by what is measured together."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from apportion.data.marked import Marked
from apportion.data.task import Split
from apportion.elastic.elastic import Elastic, logits_of
from apportion.elastic.scoring import SOURCES, Scored, depth, fisher, nest, squared_gradient
from apportion.elastic.searching import search
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.training.loop import fit
from apportion.training.recipes import DENSE


@pytest.fixture(scope="module")
def task():
    return Marked(length=12, values=4, distractors=2, train=256, validation=64, test=64).build()


@pytest.fixture(scope="module")
def elastic(task):
    torch.manual_seed(3)
    shape = {"layers": 3, "heads": 4, "hidden": 32, "feedforward": 128}
    encoder = Encoder(EncoderConfig(task.vocabulary, task.length, **shape))
    dense = fit(encoder, task, recipe=DENSE.with_changes(epochs=6, batch_size=32), seed=1).model
    return Elastic(dense, ("heads", "feedforward"), length=task.length, block=16)


def backwards(model):
    """An order that is as bad as any: the last layers first."""
    return Scored(torch.arange(len(model.units), dtype=torch.float64), {})


@pytest.fixture(scope="module")
def start(elastic):
    return nest(elastic, backwards)[0]


@pytest.fixture(scope="module")
def searched(start, task):
    return search(start, task.train)


def apart(model, split, budget):
    inputs, _ = split.batch(torch.arange(len(split)))
    with torch.no_grad():
        answers, wanted = (logits_of(model(**inputs, **how)) for how in ({"budget": budget}, {}))
    return float(split.criterion.divergence(answers, wanted))


def test_a_search_brings_small_budgets_nearer_to_the_whole_model(start, searched, task):
    after, facts = searched
    for budget in (0.125, 0.25):
        assert apart(after, task.train, budget) < apart(start, task.train, budget)
    assert facts["search_rows"] == 128 and set(facts["search_kept"]) == {"0.125", "0.25", "0.5"}


def test_what_was_found_is_what_the_budget_keeps(searched):
    after, facts = searched
    for budget, counts in facts["search_kept"].items():
        kept = after.allocation(float(budget))
        assert [len(kept.indices(*key)) for key in after.units.spans] == counts
        assert kept.cost <= float(budget) + max(map(float, after.units.shares)) / 2


def test_one_order_still_serves_all_budgets(elastic, searched, task):
    after, _ = searched
    assert after.form == "nested"
    masks = [after.allocation(n / 16).mask() for n in range(1, 17)]
    assert all(bool((less <= more).all()) for less, more in pairwise(masks))
    inputs, _ = task.test.batch(torch.arange(8))
    with torch.no_grad():
        torch.testing.assert_close(after(**inputs), elastic(**inputs))


def test_searches_of_the_same_rows_end_alike_and_need_no_labels(start, searched, task):
    bare = Split(task.train.inputs, torch.full((len(task.train),), -1))
    first, second = searched, search(start, bare)
    assert first[1]["search_kept"] == second[1]["search_kept"]
    assert torch.equal(first[0].gates.order, second[0].gates.order)


def test_fisher_information_needs_no_labels_and_switches_off_the_least_first(elastic, task):
    bare = Split(task.train.inputs, torch.full((len(task.train),), -1))
    told = []
    scored = fisher(elastic, bare, lambda *tick: told.append(tick))
    assert torch.equal(scored.scores, fisher(elastic, task.train).scores)
    ranks = (scored.scores / elastic.units.shares).round().int().sort().values
    assert ranks.tolist() == list(range(1, len(elastic.units) + 1)), "an order of all units"
    assert told[-1] == (6, 6)
    ordered, _ = nest(elastic, lambda model: fisher(model, task.train))
    reverse, _ = nest(elastic, lambda model: Scored(-fisher(model, task.train).scores, {}))
    assert apart(ordered, task.train, 0.5) < apart(reverse, task.train, 0.5)


def test_units_are_scored_again_without_those_that_went(elastic, task, monkeypatch):
    """Each level is of a smaller model, on the same rows with the same drawn labels."""
    seen = []

    def watched(model, split, progress=None):
        seen.append((sum(model.units.costs), len(model.units), split.labels))
        return squared_gradient(model, split, progress)

    monkeypatch.setattr("apportion.elastic.scoring.squared_gradient", watched)
    fisher(elastic, task.train)
    costs = [cost / seen[0][0] for cost, _, _ in seen]
    assert len(seen) == 6 and costs == sorted(costs, reverse=True) and costs[-1] < 0.2
    assert all(torch.equal(labels, seen[0][2]) for _, _, labels in seen)
    assert set(seen[0][2].tolist()) == {0, 1}


def test_depth_keeps_whole_layers_from_the_first_on(elastic):
    ordered = elastic.nested(depth(elastic.units).scores)
    kept = ordered.allocation(1 / 3)
    assert [len(kept.indices(layer, "heads")) for layer in range(3)] == [4, 0, 0]
    assert [len(kept.indices(layer, "feedforward")) for layer in range(3)] == [8, 0, 0]


def test_uniform_cuts_take_the_best_of_each_layer_by_the_same_information(elastic, task):
    best = fisher(elastic, task.train).scores
    scores = SOURCES["uniform-fisher"](elastic, task, 0, None, None).scores
    for span in elastic.units.spans.values():
        assert torch.equal(scores[span].argsort(), best[span].argsort())
    kept = elastic.nested(scores).allocation(0.5)
    assert {len(kept.indices(layer, "heads")) for layer in range(3)} == {2}


def test_a_search_ends_when_its_time_is_over(start, searched, task):
    after, facts = search(start, task.train, seconds=1e-6)
    assert facts["search_passes"] < searched[1]["search_passes"] / 10
    assert after.form == "nested" and set(facts["search_kept"]) == {"0.125", "0.25", "0.5"}


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_search_needs_a_time_that_ends(start, task, seconds):
    with pytest.raises(ValueError, match="seconds are a number above 0"):
        search(start, task.train, seconds=seconds)
