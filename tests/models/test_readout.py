"""The last layer for token 0 alone: the same answer, for less."""

from __future__ import annotations

import copy

import pytest
import torch
from support.architectures import OURS, from_transformers

from apportion.data.task import Split
from apportion.elastic.checkpoint import load, save
from apportion.elastic.conversion import convert
from apportion.elastic.elastic import Elastic, logits_of
from apportion.method.units import Allocation
from apportion.models.compute import count_macs
from apportion.models.readout import read_first_token, readout_names, reads_first_token
from apportion.models.surgery import view
from apportion.serving.runtime.skipping import Skipping
from apportion.training.prefixes import Views

FAMILIES = ("bert", "electra", "roberta", "xlm-roberta", "distilbert")
UNITS = ("heads", "feedforward")


def texts(padding=1):
    """Three rows of unlike lengths."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 20, (3, 7), generator=generator)
    mask = torch.arange(7) < torch.tensor([[7], [4], [2]])
    return {"input_ids": ids.where(mask, padding), "attention_mask": mask.long()}


def elastic(model, **options):
    return Elastic(model, UNITS, length=7, block=32, first_token=True, **options).nested().eval()


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_short_last_layer_changes_no_answer(name, kernel):
    model = from_transformers(name, kernel).eval()
    assert reads_first_token(model)
    whole = logits_of(model(**texts()))
    short = logits_of(read_first_token(copy.deepcopy(model))(**texts()))
    torch.testing.assert_close(short, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("budget", [0.1, 0.3, 0.6, 1.0])
def test_views_of_every_budget_answer_as_the_hard_mask_does(name, budget):
    model = elastic(from_transformers(name, "sdpa"))
    masked = logits_of(model(**texts(), budget=budget))
    served = logits_of(Skipping(model)(**texts(), budget=budget))
    trained = logits_of(Views(model)(model.allocation(budget), **texts()))
    torch.testing.assert_close(served, masked, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(trained, masked, atol=1e-5, rtol=1e-5)


def test_a_last_layer_without_heads_or_neurons_is_short_too():
    model = elastic(from_transformers("bert", "sdpa"))
    for kind in UNITS:
        z = torch.ones(len(model.units))
        z[model.units.spans[2, kind]] = 0.0
        kept = Allocation(model.units, tuple(bool(v) for v in z))
        whole = logits_of(model(**texts(), allocation=kept))
        short = logits_of(read_first_token(view(model.plain().eval(), kept))(**texts()))
        torch.testing.assert_close(short, whole, atol=1e-5, rtol=1e-5)


def test_gradients_through_a_short_layer_are_those_of_the_whole_one():
    model = from_transformers("bert", "sdpa").eval()
    short = read_first_token(copy.deepcopy(model))
    for one in (model, short):
        logits_of(one(**texts())).square().sum().backward()
    for (name, mine), theirs in zip(model.named_parameters(), short.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_a_model_that_reads_all_tokens_keeps_its_last_layer():
    assert not reads_first_token(OURS["apportion-encoder", "post-norm"]())
    model = from_transformers("bert", "sdpa").eval()
    pool = model.bert.pooler.forward
    model.bert.pooler.forward = lambda states: pool(states.mean(dim=1, keepdim=True))
    assert not reads_first_token(model)


def test_units_of_a_short_last_layer_cost_what_they_compute():
    model = elastic(from_transformers("bert", "sdpa"))
    whole = elastic(from_transformers("bert", "sdpa")).around(model.plain())
    assert whole.units == model.units
    head, block = (model.units.costs[model.units.spans[2, kind].start] for kind in UNITS)
    # Keys and values of 7 tokens, query and output of one, one row of the mixing: width 8 of 32.
    assert head == (2 * 7 + 2) * 32 * 8 + 2 * 7 * 8
    assert block == 2 * 32 * 32
    inside = sum(model.units.costs)
    readout = 32 * 32 + 32 * 3
    assert count_macs(model.served(), 7) == inside + readout
    assert count_macs(model.plain(), 7) > inside + readout


def test_the_readout_is_what_stands_after_the_layers():
    assert readout_names(from_transformers("bert", "sdpa")) == ["bert.pooler.dense", "classifier"]
    assert readout_names(from_transformers("distilbert", "sdpa")) == [
        "pre_classifier",
        "classifier",
    ]


def test_a_checkpoint_keeps_how_its_last_layer_is_computed(tmp_path):
    model = elastic(from_transformers("bert", "sdpa"))
    save(model, tmp_path / "made")
    loaded = load(tmp_path / "made").elastic
    assert loaded.first_token and loaded.units == model.units
    torch.testing.assert_close(
        logits_of(Skipping(loaded)(**texts(), budget=0.3)),
        logits_of(Skipping(model)(**texts(), budget=0.3)),
    )


def test_a_checkpoint_whose_model_reads_other_tokens_is_refused(tmp_path, monkeypatch):
    save(elastic(from_transformers("bert", "sdpa")), tmp_path / "made")
    monkeypatch.setattr("apportion.elastic.restoring.reads_first_token", lambda _: False)
    with pytest.raises(ValueError, match="its model reads other tokens"):
        load(tmp_path / "made")


def test_conversion_finds_out_by_itself():
    model = from_transformers("bert", "sdpa")
    rows = Split(texts(), torch.zeros(3, dtype=torch.long))
    options = {"held_out": 1, "repaired": False, "searched": False}
    assert convert(model, rows, **options).model.first_token
    assert not convert(model, rows, first_token=False, **options).model.first_token
    assert not convert(model, rows, nested=False, **options).model.first_token
