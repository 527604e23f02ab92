"""Views: a text as it is, a part of it, mixed with another, or with some of its words changed.

A view is a function of (seed, row, number) alone. A teacher and a student can be given the same
one, whatever batch it stands in, and a run that was killed sees it again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from apportion.data.task import Split
from apportion.data.tokenizer import Tokenizer

AS_IT_IS, SPAN, MIXED, UNKNOWN, REPLACED = range(5)
SHARES = (0.4, 0.2, 0.2, 0.1, 0.1)  # of the views, in that order
_UNKNOWN_WORDS, _REPLACED_WORDS = 0.2, 0.15  # shares of the words of a view that is of that kind
_PURPOSE = 2  # of the random numbers
_SCALARS = 4  # random numbers of a row before those of its tokens: kind, size, start, partner


def views(
    split: Split,
    rows: Tensor,
    *,
    words: Tokenizer,
    seed: int,
    number: int,
    neighbours: Tensor | None = None,
) -> dict[str, Tensor]:
    """The inputs of some rows of texts, each in the view of that number, as wide as the longest.

    The marks around a text stay around it, and no view is longer than the rows are stored.
    `neighbours` [vocabulary, n] has the tokens that may replace each one; without it, the views
    that need it show the text as it is.
    """
    ids, mask, lengths = split.inputs["input_ids"], split.inputs["attention_mask"], split.lengths
    assert lengths is not None
    random = _random(seed, number, rows, ids.shape[1])  # [rows, _SCALARS + width]
    kinds = _kinds(random)
    step = (random[:, 3] * (len(split) - 1)).long()
    partners = (rows + 1 + step) % len(split)  # any row but this one
    for some in (rows, partners):
        if not torch.equal(mask[some].sum(dim=1), lengths[some]):
            raise ValueError("views need rows that are padded on the right alone")
    lead, last, size = _bodies(ids, lengths, rows, words.marks)
    partner_lead, _, partner_size = _bodies(ids, lengths, partners, words.marks)

    # The view is its lead mark, `own` words from `start` on, `other` words of the partner, and
    # its last mark. Of a mixed one, the partner's words come from behind its middle.
    is_span, is_mixed = kinds == SPAN, kinds == MIXED
    span = ((0.5 + 0.5 * random[:, 1]) * size).ceil().long()
    own = torch.where(is_span, span, torch.where(is_mixed, (size + 1) // 2, size))
    start = (random[:, 2] * (size - span + 1)).long() * is_span
    # Where rows are not stored with the same marks, there may be no room for all of them.
    room = ids.shape[1] - lead - own - last
    other = torch.minimum(partner_size // 2, room) * is_mixed
    total = lead + own + other + last

    at = torch.arange(int(total.max()))  # [width]
    lead, own, other, total = (values[:, None] for values in (lead, own, other, total))
    from_partner = (at >= lead + own) & (at < lead + own + other)
    column = torch.where(at < lead, at, at + start[:, None])
    behind_middle = partner_lead + (partner_size + 1) // 2
    column = torch.where(from_partner, at - lead - own + behind_middle[:, None], column)
    is_last = (at == total - 1) & (last[:, None] > 0)
    column = torch.where(is_last, lengths[rows][:, None] - 1, column)
    seen = at < total
    row = torch.where(from_partner, partners[:, None], rows[:, None])
    tokens = ids[row, column.masked_fill(~seen, 0)].masked_fill(~seen, words.padding)
    tokens = _noisy(tokens, kinds, random[:, _SCALARS:], seen, words=words, neighbours=neighbours)
    return {"input_ids": tokens, "attention_mask": seen.to(mask.dtype)}


def nearest_tokens(embeddings: Tensor, among: Tensor, count: int = 10) -> Tensor:
    """For each of some tokens, those among them with the most similar embeddings, by cosine.

    The table is [vocabulary, count]; any other token stands in its own row.
    """
    table = torch.arange(len(embeddings))[:, None]
    count = min(count, len(among) - 1)
    if count < 1:
        return table
    unit = F.normalize(embeddings[among].detach().float(), dim=1)
    table = table.repeat(1, count)
    for places in torch.split(torch.arange(len(among)), 1024):  # all at once would be gigabytes
        similar = unit[places] @ unit.T
        similar[torch.arange(len(places)), places] = -2.0  # no token is its own neighbour
        table[among[places]] = among[similar.topk(count, dim=1).indices]
    return table


def _kinds(random: Tensor) -> Tensor:
    """The kind of each row's view [rows], by the first of its random numbers."""
    ends = torch.tensor(SHARES, dtype=random.dtype).cumsum(0)[:-1]
    return torch.bucketize(random[:, 0].contiguous(), ends, right=True)


def _random(seed: int, number: int, rows: Tensor, width: int) -> Tensor:
    """Numbers in [0, 1) of each row's own: those of other rows, or a width, change none of them."""
    bits = np.random.Philox(key=[seed, _PURPOSE])
    generator, state = np.random.Generator(bits), bits.state
    drawn = np.empty((len(rows), _SCALARS + width))
    for place, row in enumerate(rows.tolist()):
        state["state"]["counter"][:] = (0, 0, number, row)
        bits.state = state
        generator.random(out=drawn[place])
    return torch.from_numpy(drawn)


def _bodies(
    ids: Tensor, lengths: Tensor, rows: Tensor, marks: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: whether a mark leads it (0 or 1), whether one ends it, the words between."""
    special = torch.tensor(marks, dtype=ids.dtype)
    lead = torch.isin(ids[rows, 0], special).long()
    last = torch.isin(ids[rows, lengths[rows] - 1], special).long()
    last = torch.where(lengths[rows] > 1, last, torch.zeros_like(last))  # one token is one mark
    return lead, last, lengths[rows] - lead - last


def _noisy(
    tokens: Tensor,
    kinds: Tensor,
    random: Tensor,
    seen: Tensor,
    *,
    words: Tokenizer,
    neighbours: Tensor | None,
) -> Tensor:
    """The tokens with some words unknown or replaced, in the views that are of those kinds."""
    random = random[:, : tokens.shape[1]]
    fixed = torch.tensor((*words.marks, words.padding, words.unknown), dtype=tokens.dtype)
    is_word = seen & ~torch.isin(tokens, fixed)
    unknown = is_word & (kinds == UNKNOWN)[:, None] & (random < _UNKNOWN_WORDS)
    noisy = tokens.masked_fill(unknown, words.unknown)
    if neighbours is None:
        return noisy
    replaced = is_word & (kinds == REPLACED)[:, None] & (random < _REPLACED_WORDS)
    # A number below the share, over it, is uniform again: it chooses the neighbour.
    choice = (random / _REPLACED_WORDS * neighbours.shape[1]).long()
    new = neighbours[tokens[replaced].long(), choice[replaced]]
    return noisy.masked_scatter(replaced, new.to(tokens.dtype))
