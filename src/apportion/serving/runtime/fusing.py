"""Fusing: each output projection adds to the residual stream by itself. For serving only.

Sums and norms do not shrink with the units: they are a small part of a whole model, and a large one
of what a small budget leaves. A matrix product right on top of the residual stream saves two passes
over memory.
"""

from __future__ import annotations

from torch import Tensor, nn

from apportion.models.sites import find_sites


def fuse(model: nn.Module) -> nn.Module:
    """The same model, with each output projection and the sum after it as one step.

    It is changed in place and computes the same but for the last bits. Only architectures whose row
    names a `norm` are fused; modules with hooks or custom layers are left alone.
    """
    for site in find_sites(model, block=1):
        holder, _, projection = site.output.rpartition(".")
        part = model.get_submodule(holder)
        inside = [part, *part.children()]
        if site.norm and _is_plain(getattr(part, projection)) and not any(map(_hooks, inside)):
            model.set_submodule(holder, _Sum(part, projection, site.norm))
    return model


class _Sum(nn.Module):
    """A projection onto the residual stream, and the norm of their sum; parts keep their names."""

    def __init__(self, part: nn.Module, projection: str, norm: str) -> None:
        super().__init__()
        self.names = (projection, norm)
        for name in self.names:
            self.add_module(name, getattr(part, name))
        self.eval()

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """The norm of the hidden states, projected, plus the input."""
        projection, norm = (getattr(self, name) for name in self.names)
        if hidden_states.dtype != input_tensor.dtype:  # as autocast leaves them
            mixed: Tensor = norm(projection(hidden_states) + input_tensor)
            return mixed
        # A new tensor that is written over, so nobody else's: the product is added in place.
        summed = input_tensor.reshape(-1, projection.out_features) + projection.bias
        if projection.in_features:
            columns = hidden_states.reshape(-1, projection.in_features)
            summed.addmm_(columns, projection.weight.t())
        normed: Tensor = norm(summed.view(input_tensor.shape))
        return normed


def _is_plain(projection: nn.Module) -> bool:
    return type(projection) is nn.Linear and projection.bias is not None


def _hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
