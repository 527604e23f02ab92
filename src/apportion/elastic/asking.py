"""How a checkpoint's model is to be asked: as it says itself or, of an old one, as its notes do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from apportion.elastic.elastic import Elastic, OwnForm
from apportion.method.units import check_budget

_KEYS = ("form", "floor", "lowest")
FORMS = {
    "soft": "soft gates",
    "hard": "hard masks",
    "nested": "hard masks, by one order for all budgets",
}


def asking_of(model: Elastic) -> dict[str, Any]:
    """What a manifest says of it."""
    return {name: getattr(model, name) for name in _KEYS}


def in_words(model: Elastic) -> str:
    """How a model is to be asked, in a sentence."""
    made_for = [FORMS[model.form]]
    if model.lowest is not None:
        made_for.append(f"budgets from {model.lowest:g} up")
    if model.floor:
        made_for.append(f"at least {model.floor} of each kind of units in every layer")
    return f"It was made for {'; '.join(made_for)}."


def limit(model: nn.Module, floor: int, lowest: float) -> None:
    """Tells a model, if it is elastic, of its floor and its smallest budget; its form stays."""
    if isinstance(model, Elastic):
        model.made_for(model.form, floor, lowest=lowest)


def told(model: Elastic, facts: Mapping[str, Any], notes: Mapping[str, Any]) -> Elastic:
    """The model, told how it is to be asked.

    Checkpoints did not always say it. Then it is as the last recipe has it, down to the smallest
    budget that it was trained or measured at; as hard masks where gates were set from scores; and
    without a floor or a limit where the notes say nothing.
    """
    if any(name in facts for name in _KEYS):
        return model.made_for(facts["form"], facts["floor"], lowest=facts["lowest"])
    measured_at = _measured_at(notes)
    try:
        recipe = notes["recipes"][-1]
        objective, floor = recipe["objective"], int(recipe["floor"])
        trained_at = [check_budget(b) for b in (recipe["budgets"][0], *recipe["select_at"])]
    except (IndexError, KeyError, TypeError, ValueError):  # notes may be anybody's
        return model.made_for(model.form, 0, lowest=min(measured_at, default=None))
    form: OwnForm = "soft" if objective == "soft" else "hard"  # of gates set from scores, too
    if model.form == "nested":
        form = "nested"
    if objective == "dense":
        trained_at = []
    return model.made_for(form, floor, lowest=min([*trained_at, *measured_at], default=None))


def _measured_at(notes: Mapping[str, Any]) -> list[float]:
    try:
        return [check_budget(point["budget"]) for point in notes["measured"]]
    except (KeyError, TypeError, ValueError):
        return []
