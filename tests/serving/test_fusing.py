"""Fused sums: the same numbers, and only where nobody would miss what they replace."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from apportion import Elastic
from apportion.elastic.elastic import logits_of
from apportion.serving.runtime.fusing import _Sum, fuse
from apportion.serving.runtime.skipping import Skipping

SHAPE = {
    "vocab_size": 20,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 16,
}


def model_of(name="bert"):
    config = AutoConfig.for_model(name, **SHAPE)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)  # biases too: they are what is put elsewhere
    return model


def sums_in(model):
    return [name for name, part in model.named_modules() if isinstance(part, _Sum)]


@pytest.mark.parametrize("name", ["bert", "roberta", "electra"])
def test_a_fused_model_computes_what_it_did(name):
    model, ids = model_of(name), torch.randint(2, 20, (3, 10))
    fused = fuse(copy.deepcopy(model))
    assert len(sums_in(fused)) == 4
    assert fused.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        before, after = (logits_of(each(input_ids=ids)) for each in (model, fused))
    assert torch.allclose(before, after, atol=1e-5)
    assert not torch.equal(before, torch.zeros_like(before))


def test_it_leaves_what_its_caller_holds_alone():
    """The product is added in place, but never to a tensor that someone else has."""
    fused = fuse(model_of())
    with torch.no_grad():
        states = fused(torch.randint(2, 20, (3, 10)), output_hidden_states=True).hidden_states
        embedded = states[0].clone()
        fused.base_model.encoder.layer[0](states[0])
    assert torch.equal(states[0], embedded)


def test_hooked_and_foreign_parts_are_left_as_they_are():
    class Scaled(nn.Linear):
        pass

    model = model_of()
    first, second = model.base_model.encoder.layer
    first.output.dense.register_forward_hook(lambda *_: None)
    first.attention.output.register_forward_pre_hook(lambda *_: None)
    second.output.dense = Scaled(64, 32)
    assert sums_in(fuse(model)) == ["bert.encoder.layer.1.attention.output"]


def test_an_architecture_that_sums_elsewhere_is_left_as_it_is():
    config = AutoConfig.for_model(
        "distilbert", dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=20
    )
    assert sums_in(fuse(AutoModelForSequenceClassification.from_config(config))) == []


def test_states_of_another_precision_are_added_as_before():
    fused = fuse(model_of())
    part = fused.base_model.encoder.layer[0].output
    part.LayerNorm.double()
    states, stream = torch.randn(2, 5, 64), torch.randn(2, 5, 32).double()
    with torch.no_grad():
        assert torch.equal(part(states, stream), part.LayerNorm(part.dense(states) + stream))


def test_only_what_serves_is_fused():
    elastic = Elastic(model_of(), ("heads", "feedforward"), length=10)
    skipping = Skipping(elastic)
    assert len(sums_in(skipping.at(0.5))) == 4
    assert sums_in(skipping.whole) == sums_in(elastic.cut(0.5)) == []
