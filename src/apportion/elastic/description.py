"""What a checkpoint holds, in plain values, and which units it keeps at each budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from apportion.elastic.card import BUDGETS
from apportion.elastic.checkpoint import Checkpoint
from apportion.elastic.elastic import Elastic
from apportion.method.length import Schedule
from apportion.models.compute import count_macs, count_parameters
from apportion.models.configs import config_of
from apportion.models.shortening import watching_tokens
from apportion.models.sites import find_sites
from apportion.models.surgery import view


def describe(
    checkpoint: Checkpoint, budgets: Sequence[float] | None = None, *, floor: int | None = None
) -> dict[str, Any]:
    """What a checkpoint holds and, if it has gates, what these budgets keep of its units."""
    plain = checkpoint.plain
    elastic = checkpoint.require_elastic() if budgets else checkpoint.elastic
    return {
        "kind": checkpoint.kind,
        "model": config_of(plain),
        "parameters": count_parameters(plain),
        "length": checkpoint.length,
        "macs": count_macs(plain, checkpoint.length),
        "recipes": [recipe["name"] for recipe in checkpoint.notes.get("recipes", [])],
        "task": checkpoint.notes.get("task"),
        "kept": checkpoint.kept and checkpoint.kept.to_dict(),
        **(elastic.made_as if elastic else {}),
        "budgets": [_at(elastic, budget, floor) for budget in budgets or elastic.within(BUDGETS)]
        if elastic
        else [],
    }


def _at(model: Elastic, budget: float, floor: int | None) -> dict[str, Any]:
    allocation = model.allocation(budget, floor)
    soft = None if model.form == "nested" else float(model.cost(budget, "soft").detach())
    return {
        "budget": budget,
        "cost_soft": soft and round(soft, 4),
        "cost_hard": round(allocation.cost, 4),
        "kept": allocation.to_dict(),
        **({"shares": list(allocation.schedule.shares)} if allocation.schedule else {}),
    }


@torch.no_grad()
def trace_tokens(
    checkpoint: Checkpoint, text: str, *, budget: float | None = None
) -> list[dict[str, Any]]:
    """The tokens of a text, each with the number of layers that read it at a budget.

    A cut model has the schedule that it was cut with, and takes no budget.
    """
    words = checkpoint.words
    if words is None:
        raise ValueError("the checkpoint has no tokenizer, so it can read no text")
    if not text.strip():
        raise ValueError("the text is empty")
    model = checkpoint.plain
    if budget is not None:
        elastic = checkpoint.require_elastic()
        model = view(model, elastic.allocation(budget))
    shares = {site.layer: site.share for site in find_sites(model, block=1)}
    schedule = Schedule(tuple(shares.values()))
    ids = words.encode([text])[0]
    with watching_tokens() as kept:
        model.eval()(**words.pad([ids]))
    read, places = [0] * len(ids), torch.arange(len(ids))
    drops = iter(kept)
    before = 1.0
    for share in schedule.shares:
        if share < before:
            places = places[next(drops)[0]]
        before = share
        for place in places.tolist():
            read[place] += 1
    return [
        {"token": token, "layers": layers}
        for token, layers in zip(words.tokens(ids), read, strict=True)
    ]


def trace_pieces(
    checkpoint: Checkpoint, text: str, *, budgets: Iterable[float]
) -> tuple[list[str], dict[str, list[int]]]:
    """A text in pieces, and by budget the number of layers that read each of them.

    The pieces together are the text. A token is one with the space before it; what stands in no
    token, behind the last one that is read for example, is a piece that no layer reads.
    """
    words = checkpoint.words
    assert words is not None
    traced = {f"{b:g}": trace_tokens(checkpoint, text, budget=b) for b in budgets}
    pieces: list[str] = []
    tokens: list[list[int]] = []  # of each piece: bytes of one letter may be several
    end = 0
    for place, (start, stop) in enumerate(words.spans(text)):
        if stop <= end:
            if tokens and stop > start:
                tokens[-1].append(place)
            continue
        if text[end:start].strip():
            pieces.append(text[end:start])
            tokens.append([])
            end = start
        pieces.append(text[end:stop])
        tokens.append([place])
        end = stop
    if end < len(text):
        pieces.append(text[end:])
        tokens.append([])
    read = {
        budget: [max((found[n]["layers"] for n in places), default=0) for places in tokens]
        for budget, found in traced.items()
    }
    return pieces, read
