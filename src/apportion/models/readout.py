"""The readout: what turns the encoder's last states into an answer (pooler, classifier).

Most classifiers read token 0 alone. Then the last layer need not be computed for any other: its
queries, output projection and feed-forward part are asked for one token in place of all, and the
answer is the same.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion.models.shrinking import CUT_TYPE
from apportion.models.sites import layers_path


def readout_names(model: nn.Module) -> list[str]:
    """The linear layers after the encoder's layers, in the order in which the model lists them."""
    layers, names, after = layers_path(model), [], False
    for name, module in model.named_modules():
        after = after or name == layers
        if after and isinstance(module, nn.Linear) and not name.startswith(f"{layers}."):
            names.append(name)
    return names


def reads_first_token(model: nn.Module) -> bool:
    """Whether a model's last layer can be computed for token 0 alone: it is tried.

    Random states of all other tokens must change no bit of the answer. Only architectures whose
    last layer is known here can take the shortcut.
    """
    if _family(model) is None:
        return False
    last = model.get_submodule(_last_layer(model))
    vocabulary = cast(Any, model.config).vocab_size
    ids = torch.arange(1, 7, device=next(model.parameters()).device).view(1, 6) % vocabulary

    def other_states(_module: nn.Module, _args: Any, states: Tensor) -> Tensor:
        return torch.cat([states[:, :1], torch.randn_like(states[:, 1:])], dim=1)

    was_training = model.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = _answer(model.eval(), ids)
        hook = last.register_forward_hook(other_states)
        try:
            after = _answer(model, ids)
        finally:
            hook.remove()
            model.train(was_training)
    return bool(torch.equal(before, after))


def check_first_token(model: nn.Module) -> None:
    """Refuses a model that reads other tokens than token 0: none of them could be dropped."""
    if not reads_first_token(model):
        raise ValueError(
            f"{type(model).__name__} reads more tokens than the first one, or its layers are not "
            "known here, so none can be dropped; classifiers that read token 0 alone can be "
            f"shortened, of {', '.join(sorted(_FAMILIES))}"
        )


def _answer(model: nn.Module, ids: Tensor) -> Tensor:
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    answer: Tensor = getattr(output, "logits", output)
    return answer


def read_first_token(model: nn.Module) -> nn.Module:
    """The same model, its last layer computed for token 0 alone; for calls, not to be saved.

    It is changed in place: only the class of that layer, so that all parts keep their names.
    """
    family = _family(model)
    assert family is not None, "`reads_first_token` says whether it can be"
    last = model.get_submodule(_last_layer(model))
    if not isinstance(last, FirstToken):
        last.__class__ = _shortened(family, type(last))
    return model


class FirstToken(nn.Module):
    """A last layer that answers for token 0 alone; keys and values are still of all tokens."""

    first_token = True  # which `find_sites` asks of every layer


class _OfBert(FirstToken):
    """A layer of BERT and its relatives."""

    attention: Any
    intermediate: nn.Module
    output: nn.Module

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
    ) -> Tensor:
        """The state of token 0 [rows, 1, hidden]."""
        first, own = hidden_states[:, :1], self.attention.self
        mixed = _attend(own, own.query, own.key, own.value, hidden_states, attention_mask)
        attended = self.attention.output(mixed, first)
        state: Tensor = self.output(self.intermediate(attended), attended)
        return state


class _OfDistilBert(FirstToken):
    """A layer of DistilBERT."""

    attention: Any
    ffn: nn.Module
    sa_layer_norm: nn.Module
    output_layer_norm: nn.Module

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
    ) -> Tensor:
        """The state of token 0 [rows, 1, hidden]."""
        first, own = hidden_states[:, :1], self.attention
        mixed = _attend(own, own.q_lin, own.k_lin, own.v_lin, hidden_states, attention_mask)
        attended = self.sa_layer_norm(own.out_lin(mixed) + first)
        state: Tensor = self.output_layer_norm(self.ffn(attended) + attended)
        return state


_FAMILIES: dict[str, type[FirstToken]] = {
    "bert": _OfBert,
    "electra": _OfBert,
    "roberta": _OfBert,
    "xlm-roberta": _OfBert,
    "distilbert": _OfDistilBert,
}


def _attend(
    attention: Any,
    query: nn.Module,
    key: nn.Module,
    value: nn.Module,
    states: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """What the heads that are left mix for token 0 [rows, 1, columns]."""
    if not cast(nn.Linear, query).out_features:
        return states[:, :1, :0]
    split = (len(states), -1, cast(nn.Linear, query).out_features // attention.attention_head_size)
    mixed = F.scaled_dot_product_attention(
        query(states[:, :1]).view(*split, attention.attention_head_size).transpose(1, 2),
        key(states).view(*split, attention.attention_head_size).transpose(1, 2),
        value(states).view(*split, attention.attention_head_size).transpose(1, 2),
        attn_mask=None if mask is None else mask[:, :, :1],
        dropout_p=attention.dropout.p if attention.training else 0.0,
    )
    return mixed.transpose(1, 2).flatten(2)


_SHORTENED: dict[type[nn.Module], type[nn.Module]] = {}  # of each class of layers


def _shortened(family: type[FirstToken], of: type[nn.Module]) -> type[nn.Module]:
    if of not in _SHORTENED:
        _SHORTENED[of] = type(f"FirstToken{of.__name__}", (family, of), {})
    return _SHORTENED[of]


def _family(model: nn.Module) -> type[FirstToken] | None:
    kind = getattr(getattr(model, "config", None), "model_type", "")
    return _FAMILIES.get(kind.removeprefix(CUT_TYPE))


def _last_layer(model: nn.Module) -> str:
    layers = layers_path(model)
    return f"{layers}.{len(list(model.get_submodule(layers).children())) - 1}"
