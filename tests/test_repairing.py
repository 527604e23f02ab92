"""Repairing what a budget switches off, in closed form."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from apportion.elastic import Elastic
from apportion.recalling import layer_names, recalling, remembering, run_up_to
from apportion.repairing import repair
from apportion.scoring import nest, random, uniform
from apportion.sites import find_sites
from apportion.surgery import cut
from apportion.tasks import Split

ALL = ("heads", "feedforward")


def nested_of(model, length=12, block=16, even=True):
    """In a random order: the same share of every layer, or one in which sites lose all units."""
    elastic = Elastic(model, ALL, length, block=block)

    def score(fine):
        scored = random(fine.units, seed=3)
        return uniform(scored, fine.units) if even else scored

    return nest(elastic, score)[0]


def outputs_of(model, name, split):
    """What a site returns for all rows, one row a token."""
    output = model.get_submodule(name)
    if not output.in_features:
        return output.bias.detach()
    with torch.no_grad():
        found = [run_up_to(model, name, inputs)[1].flatten(0, 1) for inputs, _ in split.batches(32)]
    return torch.cat(found)


@pytest.mark.parametrize("even", [True, False])
def test_what_stays_comes_nearer_to_the_whole_model(encoder, task, even):
    nested = nested_of(encoder, even=even)
    repaired, facts = repair(nested, task.train, rows=64)
    assert facts["repair_rows"] == 64
    whole = nested.plain()
    for site in find_sites(whole, ALL, block=1):
        wanted = outputs_of(whole, site.output, task.train)
        errors = {"before": 0.0, "after": 0.0}
        for budget in (0.25, 0.5, 0.75):
            for name, model in (("before", nested), ("after", repaired)):
                smaller = cut(model.plain(), model.allocation(budget)).eval()
                found = outputs_of(smaller, site.output, task.train)
                errors[name] += float((found - wanted).square().mean())
        assert errors["after"] < errors["before"]


def test_one_site_at_one_budget_is_ordinary_least_squares(encoder, task):
    """The first site sees the same inputs at every budget, so the solution can be looked up."""
    nested = nested_of(encoder)
    repaired, _ = repair(nested, task.train, budgets=(0.75,), rows=len(task.train))
    site = find_sites(nested.model, ALL, block=1)[0]
    whole = nested.plain()
    smaller = cut(whole, nested.allocation(0.75)).eval()
    ids = task.train.inputs["input_ids"]
    with torch.no_grad():
        given, _ = run_up_to(smaller, site.output, {"input_ids": ids})
        _, wanted = run_up_to(whole, site.output, {"input_ids": ids})
    given, wanted = given.flatten(0, 1).double(), wanted.flatten(0, 1).double()
    ones = torch.ones(len(given), 1, dtype=torch.float64)
    best = torch.linalg.lstsq(torch.cat([given, ones], dim=1), wanted).solution
    output = repaired.model.get_submodule(site.output)
    kept = given.shape[1]
    weight, bias = output.weight.detach().double(), output.bias.detach().double()
    found = given @ weight[:, :kept].T + bias
    exact = torch.cat([given, ones], dim=1) @ best
    error, least = (float((w - wanted).square().mean()) for w in (found, exact))
    bias_alone = float((wanted - wanted.mean(dim=0)).square().mean())
    assert least <= error < least + 0.05 * (bias_alone - least)  # the ridge costs a little
    # What the budget does not keep is left alone.
    before = nested.model.get_submodule(site.output).weight.detach()
    assert torch.equal(output.weight.detach()[:, kept:], before[:, kept:])


def test_with_all_units_at_work_there_is_nothing_to_repair(encoder, task):
    nested = nested_of(encoder)
    repaired, _ = repair(nested, task.train, budgets=(1.0,), rows=64)
    ids = task.test.inputs["input_ids"]
    with torch.no_grad():
        assert torch.allclose(repaired(ids), nested(ids), atol=1e-4)


def test_the_given_model_is_left_alone_and_the_order_stays(encoder, task):
    nested = nested_of(encoder)
    before = {name: value.clone() for name, value in nested.state_dict().items()}
    repaired, _ = repair(nested, task.train, rows=32)
    assert all(torch.equal(value, before[name]) for name, value in nested.state_dict().items())
    assert torch.equal(repaired.gates.order, nested.gates.order)
    assert repaired.allocation(0.5).kept == nested.allocation(0.5).kept


def test_padding_says_nothing():
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=50, intermediate_size=64, max_position_embeddings=16, **shape)
    ).eval()
    nested = nested_of(model, length=16)
    ids = torch.randint(5, 50, (24, 16))
    mask = torch.arange(16) < torch.tensor([[16], [4]]).repeat(12, 1)  # in every batch, both
    labels = torch.zeros(24, dtype=torch.long)

    def repaired(garbage):
        filled = torch.where(mask, ids, garbage)
        split = Split({"input_ids": filled, "attention_mask": mask}, labels)
        return repair(nested, split)[0].state_dict()

    first, second = repaired(torch.tensor(1)), repaired(torch.tensor(7))
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)


def test_only_a_nested_model_can_be_repaired(encoder, task):
    with pytest.raises(ValueError, match="nested"):
        repair(Elastic(encoder, ALL, task.length, block=16), task.train)


def test_a_model_may_run_from_any_layer_on(encoder, task):
    ids = task.test.inputs["input_ids"]
    with torch.no_grad():
        with remembering(encoder, layer_names(encoder)) as seen:
            whole = encoder(ids)
        first, *_ = layer_names(encoder)
        with recalling(encoder, {first: seen[first]}):
            # What comes in at the bottom no longer matters.
            assert torch.equal(encoder(ids.flip(1)), whole)
        assert not torch.equal(encoder(ids.flip(1)), whole)


def test_a_part_that_is_not_called_is_named(encoder, task):
    encoder.unused = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="does not call its unused"):
        run_up_to(encoder, "unused", {"input_ids": task.test.inputs["input_ids"]})
