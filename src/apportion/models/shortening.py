"""Shortening: an encoder whose layers read fewer and fewer of a text's tokens.

After a layer, the tokens that token 0 attends to most go on, and token 0 itself; or, to be compared
with that, those that stand first. What goes on is gathered, so that every product stays dense. Each
row keeps its share of its own tokens: a batch is as wide as the largest count, and what is beyond a
row's own is masked, as padding is. So a row gets the same answer alone and in a batch.

It needs torch, Transformers and `length` alone, because a folder that loads without apportion
carries a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn

from apportion.method.length import LEAST, PARTS, parts_of

# What the call that is running keeps, for whoever watches: positions before each drop [rows, kept].
_watched: ContextVar[list[Tensor] | None] = ContextVar("kept_tokens", default=None)
# Which of the tokens that the running layer reads are a row's own [rows, tokens]; None if all are.
_reading: ContextVar[Tensor | None] = ContextVar("own_tokens", default=None)

_HEAD = "ForSequenceClassification"  # the heads that read token 0 alone, and so miss no other
_OF_ALL_TOKENS = ("output_attentions", "output_hidden_states")


def shorten(encoder: nn.Module, shares: Sequence[float], *, by_position: bool = False) -> nn.Module:
    """The same encoder, in place, whose layers read these shares of a text's tokens.

    Only its class changes, and with it the loop over its layers.
    """
    if not isinstance(encoder, Shortened):
        encoder.__class__ = _shortened(type(encoder))
    short = cast(Any, encoder)
    short.token_shares, short.by_position = tuple(shares), by_position
    return encoder


def shorten_by(model: nn.Module, record: Mapping[str, Any]) -> None:
    """Shortens a model as its config's record of a cut says, if it says so."""
    if "shares" in record:
        if not type(model).__name__.endswith(_HEAD):
            raise ValueError(
                f"this cut model drops tokens, and what is left stands in another order: it can be "
                f"loaded for sequence classification, not as {type(model).__name__}"
            )
        inside = getattr(model, getattr(model, "base_model_prefix", ""), None)
        base = inside if isinstance(inside, nn.Module) else model
        above = record["where"]["layers"].rpartition(".")[0]
        by_position = record.get("by_position", False)
        shorten(base.get_submodule(above), record["shares"], by_position=by_position)


class Shortened(nn.Module):
    """An encoder's loop over its layers that drops tokens between them."""

    layer: nn.ModuleList
    token_shares: tuple[float, ...]
    by_position: bool

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **options: Any
    ) -> Any:
        """The last states of the tokens that are left, token 0 the first of them."""
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        self._check_call(options)
        states, mask = hidden_states, attention_mask
        real = _real_tokens(mask)
        # Of each row, or of all of them.
        count = states.shape[1] if real is None else real.sum(dim=1)
        wanted = None if self.token_shares[0] == 1.0 else _by_position(states, real)
        before = 1.0
        outside = _reading.set(real)
        try:
            for number, (layer, share) in enumerate(
                zip(self.layer, self.token_shares, strict=True)
            ):
                if share < before:
                    assert wanted is not None
                    states, real = _keep(states, real, wanted, _kept(count, share))
                    mask = None if mask is None else _mask(real, mask)
                    _reading.set(real)
                before = share
                if number + 1 < len(self.layer) and self.token_shares[number + 1] < share:
                    wanted = self._wanted(layer, states, real, dropped=share < 1.0)
                states = layer(states, mask)
        finally:
            _reading.reset(outside)
        last = cast(torch.FloatTensor, states)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=last)

    def _wanted(
        self, layer: nn.Module, states: Tensor, real: Tensor | None, *, dropped: bool
    ) -> Tensor:
        """How much each token is wanted after a layer [rows, tokens]."""
        if not self.by_position:
            return _received(layer, states, real)
        # After a drop, tokens stand in the order in which they were wanted.
        return states.new_zeros(states.shape[:2]) if dropped else _by_position(states, real)

    def _check_call(self, options: Mapping[str, Any]) -> None:
        """Refuses what would be of other tokens than it seems."""
        # DistilBERT's encoder has none of its own, a layer without heads neither.
        config = next((part.config for part in self.modules() if hasattr(part, "config")), None)
        for name in _OF_ALL_TOKENS:
            if options.get(name, getattr(config, name, False)):
                raise ValueError(
                    f"{name} is of all tokens, and this model drops some; "
                    "`watching_tokens` says which ones each layer reads"
                )
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise ValueError(
                "a model that drops tokens can't be traced: a trace would keep as many tokens of "
                "every text as of the one that it was shown; `apportion export` writes a graph"
            )


_SHORTENED: dict[type[nn.Module], type[nn.Module]] = {}  # of each class of encoders


def _shortened(of: type[nn.Module]) -> type[nn.Module]:
    if of not in _SHORTENED:
        _SHORTENED[of] = type(f"Shortened{of.__name__}", (Shortened, of), {})
    return _SHORTENED[of]


def _real_tokens(mask: Tensor | None) -> Tensor | None:
    """Which tokens are no padding [rows, tokens], by the mask of attention; None if all are."""
    if mask is None:
        return None
    of_first = mask[:, 0, 0]  # what token 0 may attend to
    return of_first if of_first.dtype == torch.bool else of_first >= 0


def _mask(real: Tensor | None, like: Tensor) -> Tensor:
    """The mask of attention for these tokens [rows, 1, 1, tokens], of the kind of another one."""
    assert real is not None
    if like.dtype == torch.bool:
        return real[:, None, None]
    zeros = torch.zeros_like(real, dtype=like.dtype)
    return zeros.masked_fill(~real, torch.finfo(like.dtype).min)[:, None, None]


def _kept(count: int | Tensor, share: float) -> int | Tensor:
    """min(n, max(8, ⌈r·n⌉)), of each row or of all."""
    if isinstance(count, int):
        return min(count, max(LEAST, -(-count * parts_of(share) // PARTS)))
    part = (count * parts_of(share) + PARTS - 1) // PARTS
    return torch.minimum(count, part.clamp(min=LEAST))


@torch.no_grad()
def _by_position(states: Tensor, real: Tensor | None) -> Tensor:
    """How much each token is wanted by a crop [rows, tokens]: the first ones, and a text's end."""
    rows, width = states.shape[:2]
    places = torch.arange(width, device=states.device)
    last = width - 1 if real is None else (real.sum(dim=1) - 1)[:, None]
    return -torch.where(places == last, 0, places).float().expand(rows, -1)


@torch.no_grad()
def _received(layer: nn.Module, states: Tensor, real: Tensor | None) -> Tensor:
    """The attention that each token receives from token 0, summed over heads [rows, tokens].

    q₀·(W x) = (Wᵀ q₀)·x: so keys are not computed again, and one product per head is left. A key's
    bias adds the same to all tokens. A layer without heads wants all tokens alike.
    """
    query, key, size = _projections(layer)
    heads = query.out_features // size
    if not heads:
        return states.new_zeros(states.shape[:2])
    rows = len(states)
    asked = query(states[:, 0]).view(rows, heads, size)
    weight = key.weight.to(asked.dtype).view(heads, size, -1)
    towards = torch.einsum("rhs,hsd->rhd", asked, weight) * size**-0.5
    scores = towards @ states.to(asked.dtype).transpose(1, 2)  # [rows, heads, tokens]
    if real is not None:
        scores = scores.masked_fill(~real[:, None], torch.finfo(scores.dtype).min)
    received: Tensor = scores.softmax(dim=-1).sum(dim=1)
    return received


def _projections(layer: Any) -> tuple[nn.Linear, nn.Linear, int]:
    """The query and key projections of a layer, and the width of a head."""
    attention = getattr(layer.attention, "self", layer.attention)
    size = attention.attention_head_size
    if hasattr(attention, "q_lin"):  # DistilBERT
        return attention.q_lin, attention.k_lin, size
    return attention.query, attention.key, size


def _keep(
    states: Tensor, real: Tensor | None, wanted: Tensor, count: int | Tensor
) -> tuple[Tensor, Tensor | None]:
    """The states of the tokens that are wanted most, in that order, and which of them are real.

    Token 0 is always the first. Of tokens that are wanted alike, the one that stood first goes on.
    """
    wanted = wanted.clone()
    if real is not None:
        wanted = wanted.masked_fill(~real, -torch.inf)
    wanted[:, 0] = torch.inf
    width = count if isinstance(count, int) else int(count.max())
    order = wanted.argsort(dim=1, descending=True, stable=True)[:, :width]
    watched = _watched.get()
    if watched is not None:
        watched.append(order)
    states = states.gather(1, order[..., None].expand(-1, -1, states.shape[-1]))
    if isinstance(count, int):
        return states, None
    return states, torch.arange(width, device=states.device) < count[:, None]


@contextmanager
def watching_tokens() -> Iterator[list[Tensor]]:
    """What each drop of a call keeps: positions among the tokens before it [rows, kept]."""
    seen: list[Tensor] = []
    token = _watched.set(seen)
    try:
        yield seen
    finally:
        _watched.reset(token)


def own_tokens() -> Tensor | None:
    """Which tokens of the running layer are no filler [rows, tokens], once some are dropped.

    None where all are, and outside of such a call.
    """
    return _reading.get()
