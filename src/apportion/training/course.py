"""A course: dense fine-tuning, conversion, then training at several budgets in each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import nn

from apportion.data.task import Task
from apportion.elastic.conversion import Converted, convert
from apportion.elastic.elastic import Elastic, check_elastic
from apportion.elastic.pairing import find_frontier, paired_at
from apportion.models.configs import is_of_transformers
from apportion.training.loop import Fitted, fit
from apportion.training.progress import Tick, telling
from apportion.training.recipes import Recipe, recipe

Kind = Literal["marked", "text", "pretrained"]  # an encoder of ours without or with words, or not
_ROWS_SEEN = 80_000  # as in the study on AG News; few rows are gone through more often
# By a pretrained encoder: while it is trained whole, and while all budgets learn from that.
_DENSE_ROWS, _TAUGHT_ROWS = 6_000, 20_000


@dataclass(frozen=True)
class Trained:
    """A model with a knob, and the steps that led to it."""

    model: Elastic
    dense: Fitted | None  # none of a model that was fine-tuned already
    converted: Converted
    nested: Fitted


def train(
    model: nn.Module,
    task: Task,
    *,
    fine_tuned: bool = False,
    units: str = "all",
    seed: int = 7,
    dense: Recipe | None = None,
    nested: Recipe | None = None,
    axis: str | None = None,
    progress: Callable[[Tick], None] | None = None,
) -> Trained:
    """A model with a knob, trained as `apportion train --units all` does, to the same weights.

    Unless it is `fine_tuned`, the model is trained whole; then its units are put in one order and
    repaired, and all budgets learn from the whole model. The recipes are those of the command, or
    those that are given. With an `axis` of length or both, budgets buy fewer tokens, too, and which
    pair each of them buys is measured after training. The given model is left alone.
    """
    kind: Kind = "text" if task.words else "marked"
    first, last = steps(
        "pretrained" if is_of_transformers(model) else kind,
        len(task.train),
        unlabelled=len(task.unlabelled or ()),
    )
    whole = None
    if not fine_tuned:
        how = dense or recipe(**first)
        whole = fit(model, task, recipe=how, seed=seed, progress=progress)
    teacher = whole.model if whole else model
    converted = convert(teacher, task, units=units, progress=telling(progress))
    learning = nested or recipe(**last)
    learning = learning.with_changes(axis=axis or learning.axis)
    trained = fit(
        converted.model,
        task,
        recipe=learning,
        seed=seed,
        teacher=teacher,
        progress=progress,
    )
    made = check_elastic(trained.model)
    if learning.axis != "width":
        made, _ = find_frontier(
            made,
            task.train,
            **learning.tokens,
            budgets=paired_at(learning.lowest),
            progress=partial(telling(progress), "frontier"),
        )
    return Trained(made, whole, converted, trained)


def steps(
    kind: Kind,
    rows: int,
    *,
    unlabelled: int = 0,
    epochs: int | None = None,
    nested_epochs: int | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The dense and the nested step for so many rows: a recipe's name, and what changes in it."""
    passes = min(20, max(1, round(_TAUGHT_ROWS / max(1, rows + unlabelled))))
    passes = passes if nested_epochs is None else nested_epochs
    taught = {"name": "nested-encoder", "epochs": passes, "views": min(5, passes)}
    if kind == "pretrained":
        if epochs is None:  # few rows are gone through more often; the best epoch is kept
            epochs = min(10, max(recipe("dense-encoder").epochs, round(_DENSE_ROWS / rows)))
        return {"name": "dense-encoder", "epochs": epochs}, taught
    # Numbers of an encoder of our own; no study was made of its nested training.
    of_texts = kind == "text"
    if epochs is None:
        epochs = min(40, max(3, round(_ROWS_SEEN / rows))) if of_texts else 12
    if nested_epochs is None:
        nested_epochs = (epochs + 1) // 2 if of_texts else 6
    dense: dict[str, Any] = {"name": "dense", "epochs": epochs}
    nested = {
        "name": "nested",
        "epochs": nested_epochs,
        "batch_size": 64,
        "lr": 1e-3,
        "warmup": 0.1,
    }
    if of_texts:  # the tokens of the other task are no words
        dense |= {"lr": 2e-3, "warmup": 0.1, "word_dropout": 0.3}
        nested |= {"word_dropout": 0.3}
    if unlabelled:
        nested = {**taught, "batch_size": 64, "lr": 1e-3}
    return dense, nested
