"""The classes that a model of Transformers tells apart: their names, and a head's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

CLASSIFIES = "ForSequenceClassification"  # how the names of such classes of models end


def class_names(config: Any) -> list[str] | None:
    """The names of the classes in the order of a head's outputs, if a config has any."""
    named = getattr(config, "id2label", None) or {}
    return [str(named[number]) for number in sorted(named, key=int)] or None


def name_classes(config: Any, classes: Sequence[str]) -> Any:
    """A config whose outputs have these names."""
    config.id2label = dict(enumerate(classes))
    config.label2id = {label: number for number, label in enumerate(classes)}
    return config


def order_of(
    classes: Sequence[str], known: Sequence[str], numbered: bool = False
) -> list[int] | None:
    """Which output of a head is each class, if it knows them all.

    If `numbered`, an output that nobody named, as LABEL_0, is the class 0.
    """
    unnamed = [f"LABEL_{number}" for number in range(len(known))]
    if numbered and list(known) == unnamed and not set(classes) & set(unnamed):
        known = [str(number) for number in range(len(known))]
    if len(known) != len(classes) or set(known) != set(classes):
        return None
    return [known.index(label) for label in classes]


def reorder_head(model: nn.Module, order: list[int]) -> None:
    """Puts the outputs of a trained head in another order."""
    last = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == len(order)]
    with torch.no_grad():
        for values in last[-1].parameters():  # its weight, and its bias if it has one
            values.copy_(values[order].clone())


def first_few(names: Sequence[str]) -> str:
    """Some names, of which there may be many."""
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "none"
