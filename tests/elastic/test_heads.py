from __future__ import annotations

import pytest
import torch
from architectures import SHAPES, ask, from_transformers
from transformers import BertConfig, BertForSequenceClassification

from apportion.elastic.head_mask import HeadMask, prune_heads
from apportion.models.compute import compare_compute, count_parameters

TEXT = sorted(set(SHAPES) - {"vit"})


@pytest.fixture
def inputs():
    ids = torch.randint(2, 20, (4, 9))
    mask = (torch.arange(9) < torch.tensor([9, 4, 7, 2])[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("name", TEXT)
def test_a_masked_head_is_a_pruned_head(name, inputs):
    model = from_transformers(name, "sdpa").eval()
    mask = torch.ones(3, 4)
    mask[0, [1, 3]] = 0.0
    mask[2] = 0.0
    with torch.no_grad():
        masked = ask(HeadMask(model).eval(), inputs, head_mask=mask)
        pruned = ask(prune_heads(model, {0: [1, 3], 2: range(4)}).eval(), inputs)
        assert torch.allclose(masked, pruned, atol=1e-5)
        assert not torch.allclose(masked, ask(model, inputs), atol=1e-3)


def test_a_mask_of_ones_or_none_is_the_model(inputs):
    model = from_transformers("bert", "sdpa").eval()
    masked = HeadMask(model).eval()
    with torch.no_grad():
        expected = ask(model, inputs)
        assert torch.equal(ask(masked, inputs), expected)
        assert torch.equal(ask(masked, inputs, head_mask=torch.ones(4)), expected)


def test_gradients_reach_the_mask(inputs):
    mask = torch.ones(3, 4, requires_grad=True)
    ask(
        HeadMask(from_transformers("bert", "eager")).eval(), inputs, head_mask=mask
    ).sum().backward()
    assert mask.grad.abs().min() > 0


def test_heads_that_are_not_there_are_named():
    model = from_transformers("bert", "sdpa")
    with pytest.raises(ValueError, match="layer 1 has heads 0 to 3, so head 4 can't be pruned"):
        prune_heads(model, {1: [4]})
    with pytest.raises(ValueError, match="layer 7 has no heads"):
        prune_heads(model, {7: [0]})
    with pytest.raises(ValueError, match=r"shape \(3, 4\) or \(4,\), not \(2, 4\)"):
        HeadMask(model)(torch.zeros(1, 2, dtype=torch.long), head_mask=torch.ones(2, 4))
    uneven = HeadMask(prune_heads(model, {0: [0]}))
    with pytest.raises(ValueError, match="different numbers of heads"):
        uneven(torch.zeros(1, 2, dtype=torch.long), head_mask=torch.ones(3, 4))


def test_pruning_twice_names_heads_by_what_is_left(inputs):
    model = from_transformers("distilbert", "sdpa").eval()
    once = prune_heads(prune_heads(model, {1: [0]}), {1: [0, 0]}).eval()
    with torch.no_grad():
        assert torch.equal(ask(once, inputs), ask(prune_heads(model, {1: [0, 1]}).eval(), inputs))


def test_the_compute_analysis_gives_the_papers_numbers():
    """BERT-Mini at half its heads, length 128."""
    config = BertConfig(
        num_hidden_layers=4,
        num_attention_heads=4,
        hidden_size=256,
        intermediate_size=1024,
        vocab_size=30522,
        num_labels=4,
    )
    model = BertForSequenceClassification(config)
    smaller = prune_heads(model, {layer: [0, 1] for layer in range(4)})
    assert count_parameters(model) - count_parameters(smaller) == 525_824
    removed = compare_compute(model, smaller, 128)
    assert removed["head_parameters"] == 0.5
    assert removed["attention_macs"] == 0.5
    assert round(100 * removed["parameters"], 1) == 4.7
    assert round(100 * removed["layer_macs"], 1) == 19.2
