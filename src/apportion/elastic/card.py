"""The card beside a model's weights: what it is, what its budgets buy, what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from apportion.elastic.elastic import Elastic, Form
from apportion.method.units import Allocation
from apportion.models.compute import count_macs, count_parameters
from apportion.models.sites import find_sites
from apportion.models.surgery import view

BUDGETS = (0.25, 0.5, 0.75, 1.0)  # where nobody names any
_FORMS: dict[Form, str] = {
    "soft": "soft gates",
    "hard": "hard masks",
    "nested": "hard masks, by one order for all budgets",
}


def model_card(
    model: nn.Module,
    notes: Mapping[str, Any],
    *,
    elastic: Elastic | None,
    kept: Allocation | None,
    length: int,
) -> str:
    """The text of a README.md of a plain model, or of the one inside an elastic one.

    It is in the form that the hub shows.
    """
    library = "transformers" if hasattr(model, "save_pretrained") else "apportion"
    head: dict[str, Any] = {"library_name": library, "tags": ["apportion"]}
    if "pretrained" in notes:
        head["base_model"] = notes["pretrained"]
    if elastic is not None:
        title, how = "A model with a compute knob", _HOW_ELASTIC[elastic.form]
        asked = " Each call may ask for a budget: the share of its units that work. "
        asked += in_words(elastic)
        bought = "## What a budget buys\n\n" + _budgets(elastic, length)
    else:
        title, how, asked, bought = "A whole model", _HOW_PLAIN[library], "", ""
        if kept is not None:
            title = f"A model cut to {kept.cost:.0%} of its units"
            bought = "## What was kept\n\n" + _layers(kept)
    classes = f" Classes: {', '.join(map(str, notes['classes']))}." if notes.get("classes") else ""
    parts = [
        "---\n" + "".join(f"{name}: {json.dumps(value)}\n" for name, value in head.items()) + "---",
        f"# {title}",
        _sizes(model, length) + asked + classes,
        f"```python\nimport apportion{how}\n```",
        bought,
    ]
    if notes.get("measured"):
        parts.append("## Measured on test rows\n\n" + _measured(notes["measured"]))
    if notes.get("recipes"):
        parts.append("## How it was trained\n\n" + _training(notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def in_words(model: Elastic) -> str:
    """How a model is to be asked, in a sentence."""
    made_for = [_FORMS[model.form]]
    if model.lowest is not None:
        made_for.append(f"budgets from {model.lowest:g} up")
    if model.floor:
        made_for.append(f"at least {model.floor} of each kind of units in every layer")
    return f"It was made for {'; '.join(made_for)}."


def unlabelled_in_words(facts: Mapping[str, Any]) -> str:
    """The texts without labels that a task has, and those that it leaves out, in a sentence."""
    labels = "; it has labels, which are not read" if facts.get("had_labels") else ""
    return (
        f"texts without labels: {facts['rows']:,} of {facts['source']}{labels}; left out: "
        f"{facts['in_test']:,} in validation or test, {facts['doubles']:,} copies of others"
    )


_LOADED = "\n\nmodel = apportion.load(FOLDER).model"
_HOW_PLAIN = {
    "apportion": _LOADED,
    "transformers": "  # knows the sizes of cut models\n"
    "from transformers import AutoModelForSequenceClassification\n\n"
    "model = AutoModelForSequenceClassification.from_pretrained(FOLDER)",
}
_HOW_ELASTIC = {
    form: f"{_LOADED}\n"
    f"model(**inputs, budget=0.5)   # {_FORMS[form]}\n"
    "smaller = model.cut(0.5)      # a smaller plain model"
    for form in _FORMS
} | {
    "nested": f"{_LOADED}\n"
    "serving = apportion.Skipping(model)\n"
    "serving(**inputs, budget=0.5)  # views of the one set of weights\n"
    "smaller = model.cut(0.5)       # a smaller plain model"
}


def _sizes(model: nn.Module, length: int) -> str:
    heads = find_sites(model, ("heads",))
    sizes = [site.count for site in heads]
    counts = f"{sizes[0]}" if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"
    return (
        f"{type(model).__name__}: {len(heads)} layers of {counts} heads, hidden {heads[0].hidden}, "
        f"{count_parameters(model):,} parameters, {count_macs(model, length):,} "
        f"multiply-accumulates on {length} tokens."
    )


def _budgets(model: Elastic, length: int) -> str:
    whole = model.served()
    macs = count_macs(whole, length)
    rows = []
    for budget in model.within(BUDGETS):
        kept = model.allocation(budget)
        smaller = view(whole, kept)
        left = count_macs(smaller, length)
        # One order for all budgets is not meant to be half open.
        soft = None if model.form == "nested" else float(model.cost(budget, "soft").detach())
        rows.append(
            (
                f"{budget:.2f}",
                "–" if soft is None else f"{soft:.3f}",
                f"{kept.cost:.3f}",
                f"{kept.count} of {len(model.units)}",
                f"{count_parameters(smaller):,}",
                f"{macs / left:.2f}x",
            )
        )
    columns = ("budget", "cost, soft", "cost, cut", "units", "parameters", "at most faster")
    return markdown_table(columns, rows)


def _layers(kept: Allocation) -> str:
    rows = [
        (layer, kind, " ".join(map(str, indices)) or "none")
        for layer, kinds in kept.to_dict().items()
        for kind, indices in kinds.items()
    ]
    return markdown_table(("layer", "kind", "kept"), rows)


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
    return markdown_table(("budget", "form", "cost", "accuracy, %", "rows"), rows)


def _training(notes: Mapping[str, Any]) -> str:
    steps = " → ".join(
        f"{recipe['name']} ({recipe['epochs']} epochs, learning rate {recipe['lr']:g})"
        for recipe in notes["recipes"]
    )
    facts = {"seed": notes.get("seed"), "digest of the rows": notes.get("data")}
    said = [f"{name} {value}" for name, value in facts.items() if value]
    if notes.get("unlabelled"):
        said.append(unlabelled_in_words(notes["unlabelled"]))
    return f"{steps}. " + "; ".join(said)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as GitHub shows it."""
    lines = ["| " + " | ".join(line) + " |" for line in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])
