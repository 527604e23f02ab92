"""The card beside a model's weights: what it is, what its budgets buy, what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from apportion.elastic.asking import FORMS, in_words
from apportion.elastic.elastic import Elastic, plain_of
from apportion.method.units import Allocation
from apportion.models.compute import count_macs, count_parameters
from apportion.models.sites import find_sites
from apportion.models.surgery import view

_BUDGETS = (0.25, 0.5, 0.75, 1.0)


def model_card(
    model: nn.Module, notes: Mapping[str, Any], kept: Allocation | None, length: int
) -> str:
    """The text of a README.md, in the form that the hub shows."""
    plain = plain_of(model)
    library = "transformers" if hasattr(plain, "save_pretrained") else "apportion"
    head: dict[str, Any] = {"library_name": library, "tags": ["apportion"]}
    if "pretrained" in notes:
        head["base_model"] = notes["pretrained"]
    parts = [
        "---\n" + "".join(f"{name}: {json.dumps(value)}\n" for name, value in head.items()) + "---",
        f"# {_title(model, kept)}",
        _what(model, plain, notes, kept, length),
        "```python\n" + _how(model, library) + "\n```",
    ]
    if isinstance(model, Elastic):
        parts.append("## What a budget buys\n\n" + _budgets(model, length))
    elif kept is not None:
        parts.append("## What was kept\n\n" + _layers(kept))
    if notes.get("measured"):
        parts.append("## Measured on test rows\n\n" + _measured(notes["measured"]))
    if notes.get("recipes"):
        parts.append("## How it was trained\n\n" + _training(notes))
    return "\n\n".join(parts) + "\n"


def _title(model: nn.Module, kept: Allocation | None) -> str:
    if isinstance(model, Elastic):
        return "A model with a compute knob"
    return "A whole model" if kept is None else f"A model cut to {kept.cost:.0%} of its units"


def _what(
    model: nn.Module,
    plain: nn.Module,
    notes: Mapping[str, Any],
    kept: Allocation | None,
    length: int,
) -> str:
    heads = find_sites(plain, ("heads",))
    sizes = [site.count for site in heads]
    said = f"{sizes[0]}" if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"
    text = (
        f"{type(plain).__name__}: {len(heads)} layers of {said} heads, hidden {heads[0].hidden}, "
        f"{count_parameters(plain):,} parameters, {count_macs(plain, length):,} "
        f"multiply-accumulates on {length} tokens."
    )
    if isinstance(model, Elastic):
        text += (
            f" Each call may ask for a budget: the share of its units that work. {in_words(model)}"
        )
    if notes.get("classes"):
        text += f" Classes: {', '.join(map(str, notes['classes']))}."
    return text


def _how(model: nn.Module, library: str) -> str:
    if isinstance(model, Elastic) and model.form == "nested":
        return (
            "import apportion\n\n"
            "model = apportion.load(FOLDER).model\n"
            "serving = apportion.Skipping(model)\n"
            "serving(**inputs, budget=0.5)  # views of the one set of weights\n"
            "smaller = model.cut(0.5)       # a smaller plain model"
        )
    if isinstance(model, Elastic):
        return (
            "import apportion\n\n"
            "model = apportion.load(FOLDER).model\n"
            f"model(**inputs, budget=0.5)   # {FORMS[model.form]}\n"
            "smaller = model.cut(0.5)      # a smaller plain model"
        )
    if library == "transformers":
        return (
            "import apportion  # knows the sizes of cut models\n"
            "from transformers import AutoModelForSequenceClassification\n\n"
            "model = AutoModelForSequenceClassification.from_pretrained(FOLDER)"
        )
    return "import apportion\n\nmodel = apportion.load(FOLDER).model"


def _budgets(model: Elastic, length: int) -> str:
    whole = model.plain()
    macs = count_macs(whole, length)
    rows = []
    for budget in model.within(_BUDGETS):
        kept = model.allocation(budget)
        smaller = view(whole, kept)
        left = count_macs(smaller, length)
        rows.append(
            (
                f"{budget:.2f}",
                # One order for all budgets is not meant to be half open.
                "–"
                if model.form == "nested"
                else f"{float(model.cost(budget, 'soft').detach()):.3f}",
                f"{kept.cost:.3f}",
                f"{kept.count} of {len(model.units)}",
                f"{count_parameters(smaller):,}",
                f"{macs / left:.2f}x",
            )
        )
    columns = ("budget", "cost, soft", "cost, cut", "units", "parameters", "at most faster")
    return _table(columns, rows)


def _layers(kept: Allocation) -> str:
    rows = [
        (layer, kind, " ".join(map(str, indices)) or "none")
        for layer, kinds in kept.to_dict().items()
        for kind, indices in kinds.items()
    ]
    return _table(("layer", "kind", "kept"), rows)


def _measured(points: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"{p['budget']:.3g}",
            p["form"],
            f"{p['cost']:.3f}",
            f"{100 * p['accuracy']:.2f}",
            str(p["rows"]),
        )
        for p in points
    ]
    return _table(("budget", "form", "cost", "accuracy, %", "rows"), rows)


def _training(notes: Mapping[str, Any]) -> str:
    steps = " → ".join(
        f"{recipe['name']} ({recipe['epochs']} epochs, learning rate {recipe['lr']:g})"
        for recipe in notes["recipes"]
    )
    told = {"seed": notes.get("seed"), "digest of the rows": notes.get("data")}
    return f"{steps}. " + "; ".join(f"{name} {value}" for name, value in told.items() if value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
