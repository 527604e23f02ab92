"""Compute: multiply-accumulates and parameters of a model, and the shares that a cut removes."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from apportion.models.sites import find_sites, layers_path


def count_macs(model: nn.Module, length: int) -> int:
    """Multiply-accumulates of a model on one sequence.

    A layer: 4·n·d·k·w + 2·n²·k·w for k heads of width w, 2·n·d·f for f feed-forward neurons; less
    for a last layer that is computed for token 0 alone.
    Embeddings, norms and activations multiply no matrices and count nothing.
    """
    sites = find_sites(model, block=1)
    inside = sum(site.count * site.unit_macs(length) for site in sites)
    known = {name for site in sites for name in (*site.inputs, site.output)}
    # Linear layers before the encoder's layers run once per token; those after, on the pooled
    # sequence, once.
    outside, times, layers = 0, length, layers_path(model)
    for name, module in model.named_modules():
        if name == layers:
            times = 1
        if isinstance(module, nn.Linear) and name not in known:
            outside += times * module.in_features * module.out_features
    return inside + outside


def compare_compute(model: nn.Module, smaller: nn.Module, length: int) -> dict[str, float]:
    """The shares of the whole model's compute that a cut removes.

    Shares of all parameters; of the heads' parameters (q, k, v and output projection); and of the
    multiply-accumulates of attention, and of whole layers, feed-forward parts included.
    """
    before, after = _compute(model, length), _compute(smaller, length)
    return {name: 1.0 - after[name] / before[name] for name in before}


def _compute(model: nn.Module, length: int) -> dict[str, int]:
    # Of what there is: that a last layer may be computed for one token alone is no cut.
    sites = [replace(site, first_token=False) for site in find_sites(model, block=1)]
    heads = [site for site in sites if site.kind == "heads"]
    attention = sum(site.count * site.unit_macs(length) for site in heads)
    return {
        "parameters": count_parameters(model),
        # A head owns `width` rows of each input with their biases, and as many output columns.
        "head_parameters": sum(
            site.count * site.width * (4 * site.hidden + len(site.inputs)) for site in heads
        ),
        "attention_macs": attention,
        "layer_macs": attention
        + sum(site.count * site.unit_macs(length) for site in sites if site.kind != "heads"),
    }


def count_parameters(model: nn.Module) -> int:
    """All weights of a model."""
    return sum(parameter.numel() for parameter in model.parameters())
