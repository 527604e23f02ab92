"""What `inspect --text` shows: which words each layer of a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from apportion.elastic.checkpoint import Checkpoint


def show_words(
    checkpoint: Checkpoint, text: str, budgets: Sequence[float] | None, as_json: bool
) -> None:
    """Shows the words of a text that each layer reads, at each of some budgets."""
    from apportion.elastic.card import BUDGETS
    from apportion.elastic.description import trace_tokens
    from apportion.study.report.terminal import print_json

    asked: list[float | None] = [None]
    if checkpoint.elastic is not None:
        asked = list(budgets or checkpoint.elastic.within(BUDGETS))
    elif budgets:
        checkpoint.require_elastic()
    found = {budget: trace_tokens(checkpoint, text, budget=budget) for budget in asked}
    if as_json:
        print_json([{"budget": b, "tokens": tokens} for b, tokens in found.items()])
        return
    for budget, tokens in found.items():
        for layer in range(max(token["layers"] for token in tokens)):
            words = [t["token"] if t["layers"] > layer else "·" for t in tokens]
            count = sum(t["layers"] > layer for t in tokens)
            at = "" if budget is None else f"budget {budget:g}, "
            typer.echo(f"{at}layer {layer} reads {count} of {len(words)} tokens")
            typer.echo(f"  {' '.join(words)}")
