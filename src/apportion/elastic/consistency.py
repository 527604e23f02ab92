"""Whether the parts of a checkpoint fit each other: notes, words, weights, order and model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from apportion.data.marked import Marked
from apportion.data.text import Text
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.elastic import logits_of, plain_of
from apportion.files import check
from apportion.method.units import Allocation, Units, check_budget
from apportion.models.encoder import Encoder
from apportion.models.hub import positions_of
from apportion.models.labels import CLASSIFIES, class_names
from apportion.models.sites import find_sites

_LARGEST = 1e8  # a square of a square of it is finite in single precision; no weight comes near
_TASKS: dict[Any, Any] = {"marked": Marked, "text": Text}


@dataclass(frozen=True)
class _Trained:
    """What is read of a recipe that a model was trained by."""

    name: str
    objective: str
    epochs: int
    lr: float
    floor: int
    budgets: tuple[float, ...] = (1.0,)
    select_at: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.lr <= 0 or self.floor < 0:
            raise ValueError(f"epochs {self.epochs}, lr {self.lr} and floor {self.floor}")
        for budget in (*self.budgets, *self.select_at):
            check_budget(budget)


def check_notes(notes: Mapping[str, Any], model: nn.Module) -> None:
    """Complains of a note that its readers can't use, or that contradicts the model.

    Notes that nobody here reads may be anything.
    """
    for name, problem_of in _NOTES.items():
        if name not in notes:
            continue
        problem = problem_of(notes[name])
        if problem:
            raise ValueError(f"the note {name!r} {problem}")
    classes, outputs = notes.get("classes"), outputs_of(model)
    if classes is not None and outputs is not None and len(classes) != outputs:
        raise ValueError(
            f"the note 'classes' names {len(classes)} classes, and the model has {outputs} outputs"
        )
    check_classes(notes, model)


def check_classes(notes: Mapping[str, Any], model: nn.Module) -> None:
    """Complains of a config whose classes share a name, or are not those of the note."""
    plain = plain_of(model)
    if isinstance(plain, Encoder) or not type(plain).__name__.endswith(CLASSIFIES):
        return
    config: Any = plain.config
    named = config.id2label
    if sorted(named) != list(range(len(named))):
        raise ValueError(f"the config has outputs 0 to {len(named) - 1}, and names {sorted(named)}")
    names = class_names(config) or []
    problem = _problem_of_classes(names)
    if problem:
        raise ValueError(f"id2label of the config {problem}")
    noted = notes.get("classes")
    unnamed = all(name.startswith("LABEL_") for name in names)
    if noted is not None and not unnamed and list(noted) != names:
        raise ValueError(
            f"the note 'classes' says {', '.join(noted)}, and the config {', '.join(names)}"
        )


def outputs_of(model: nn.Module) -> int | None:
    """How many classes a model tells apart, if it is one that does."""
    plain = plain_of(model)
    if isinstance(plain, Encoder):
        return plain.config.classes
    config: Any = plain.config
    return int(config.num_labels) if type(plain).__name__.endswith(CLASSIFIES) else None


def is_whole(value: object, least: int = 0, most: float = math.inf) -> bool:
    """Whether a value of JSON is a whole number in a range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, above: float = -math.inf) -> bool:
    """Whether a value of JSON is a number, not infinite, and above another."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value) and value > above
    except OverflowError:  # a whole number that no float can hold
        return False


def _problem_of_classes(classes: Any) -> str | None:
    if not isinstance(classes, (list, tuple)) or not classes:
        return f"is not a list of names: {classes!r:.80}"
    if not all(isinstance(name, str) and name for name in classes):
        return f"is not a list of names: {classes!r:.80}"
    if len(set(classes)) < len(classes):
        return f"names one class twice: {', '.join(classes)}"
    return None


def _problem_of_task(task: Any) -> str | None:
    if not isinstance(task, dict):
        return f"is not a table: {task!r:.80}"
    kind = task.get("kind")
    if not isinstance(kind, str):
        return f"is of kind {kind!r:.80}"
    if kind not in _TASKS:
        return None
    return _problem_of_numbers(task, _TASKS[kind])


def _problem_of_recipes(recipes: Any) -> str | None:
    if not isinstance(recipes, list):
        return f"is not a list: {recipes!r:.80}"
    for number, recipe in enumerate(recipes, start=1):
        if not isinstance(recipe, dict):
            return f"has no table as its number {number}: {recipe!r:.80}"
        lacks = {"name", "objective", "epochs", "lr", "floor"} - set(recipe)
        if lacks:
            return f"has a number {number} without {', '.join(sorted(lacks))}"
        problem = _problem_of_numbers(recipe, _Trained)
        if problem:
            return f"{problem} (number {number})"
    return None


def _problem_of_numbers(table: Mapping[str, Any], kind: Any) -> str | None:
    """What is wrong with the values of a table as those of a class; names it lacks are left out."""
    hints = get_type_hints(kind)
    known = {name: value for name, value in table.items() if name in hints}
    for name, value in known.items():
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, float) and not is_number(number) for number in numbers):
            return f"has {name} = {value!r:.80}"
    try:
        check("has values of which", known, hints)
        kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in known.items()})
    except (TypeError, ValueError) as error:
        return f"can't be used: {error}"
    return None


def _problem_of_measured(points: Any) -> str | None:
    if not isinstance(points, list):
        return f"is not a list: {points!r:.80}"
    for point in points:
        good = (
            isinstance(point, dict)
            and isinstance(point.get("form"), str)
            and all(is_number(point.get(name)) for name in ("budget", "cost", "accuracy"))
            and is_whole(point.get("rows"))
        )
        if not good:
            return f"has a point without budget, form, cost, accuracy and rows: {point!r:.80}"
        if not 0.0 < point["budget"] <= 1.0:
            return f"has a point at a budget of {point['budget']}"
        for name in ("accuracy", "cost"):
            if not 0.0 <= point[name] <= 1.0 + 1e-6:
                return f"has a point of {name} {point[name]}"
    return None


def _problem_of_cut(facts: Any) -> str | None:
    if not isinstance(facts, dict):
        return f"is not a table: {facts!r:.80}"
    if not (is_number(facts.get("budget"), above=0.0) and facts["budget"] <= 1.0):
        return f"has a budget of {facts.get('budget')!r:.80}"
    if not is_whole(facts.get("floor")) or not is_number(facts.get("cost")):
        return f"has no floor and cost: {facts!r:.80}"
    return None


def _says_which_texts(facts: Any) -> bool:
    return (
        isinstance(facts, dict)
        and isinstance(facts.get("source"), str)
        and all(is_whole(facts.get(name)) for name in ("rows", "in_test", "doubles"))
    )


def _unless(is_good: Callable[[Any], bool], wanted: str) -> Callable[[Any], str | None]:
    """A check of a note that is only read as it is."""
    return lambda value: None if is_good(value) else f"is not {wanted}: {value!r:.80}"


_problem_of_text = _unless(lambda value: isinstance(value, str), "text")
_NOTES: dict[str, Callable[[Any], str | None]] = {
    "classes": _problem_of_classes,
    "task": _problem_of_task,
    "recipes": _problem_of_recipes,
    "measured": _problem_of_measured,
    "cut": _problem_of_cut,
    "data": _problem_of_text,
    "method": _problem_of_text,
    "pretrained": _problem_of_text,
    "seed": _unless(is_whole, "a whole number"),
    "training": _unless(lambda value: isinstance(value, dict), "a table"),
    "unlabelled": _unless(_says_which_texts, "a table of source, rows, in_test and doubles"),
}


def check_words(words: Tokenizer, model: nn.Module) -> None:
    """Complains of words that the model has no embedding or no position for."""
    plain = plain_of(model)
    config: Any = plain.config
    own = isinstance(plain, Encoder)
    size = config.vocabulary if own else config.vocab_size
    longest = config.length if own else positions_of(config)
    if words.length > longest:
        raise ValueError(
            f"the tokenizer reads {words.length} tokens, and the model {longest} at most"
        )
    try:  # special tokens stand in every text, whatever the vocabulary says of them
        encoded = words.encode(["", "a b c", "a " * (words.length + 2)])
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"the tokenizer can't read a text: {error}") from None
    if max(map(len, encoded)) > words.length:
        raise ValueError(f"the tokenizer does not truncate at {words.length} tokens")
    highest = max(words.highest, *(number for ids in encoded for number in ids))
    if highest >= size:
        raise ValueError(f"the tokenizer has a word {highest}, and the model knows {size} of them")


def check_finite(weights: Mapping[str, Tensor], where: object) -> None:
    """Complains of weights that are not numbers, or so large that an answer may be none."""
    for name, value in weights.items():
        if value.is_floating_point() and not bool((value.abs() <= _LARGEST).all()):
            raise ValueError(f"{where} has numbers that are not finite, or are too large: {name}")


def check_order(order: Tensor, units: Units) -> None:
    """Complains of an order that does not buy the first units of each layer first."""
    place = order.cpu().argsort()  # of each unit in the order
    for (layer, kind), span in units.spans.items():
        if not bool((place[span].diff() > 0).all()):
            raise ValueError(
                f"the order does not buy the {kind} of layer {layer} from the first on"
            )


def check_heads(units: Units, model: nn.Module) -> None:
    """Complains of units that are not the heads of a whole model."""
    counts = {(site.layer, site.kind): site.count for site in find_sites(model, ("heads",))}
    listed = {key: span.stop - span.start for key, span in units.spans.items()}
    if listed != {key: count for key, count in counts.items() if count}:
        raise ValueError("the manifest lists other units than the model has")


def check_kept(kept: Allocation, model: nn.Module) -> None:
    """Complains of a cut model that has other units than those that were kept."""
    for site in find_sites(model, kept.units.kinds, block=1):
        stay = len(kept.indices(site.layer, site.kind))
        fits = site.count == stay if site.kind == "heads" or not stay else site.count % stay == 0
        if not fits or (site.layer, site.kind) not in kept.units.spans:
            raise ValueError(
                f"{stay} {site.kind} of layer {site.layer} were kept, "
                f"and the model has {site.count}"
            )


def check_answer(model: nn.Module, words: Tokenizer | None) -> None:
    """Complains of a model that can't answer, or answers what is no number, to a few tokens."""
    plain, outputs = plain_of(model), outputs_of(model)
    if outputs is None or getattr(plain, "main_input_name", "input_ids") != "input_ids":
        return  # not of texts
    try:
        ids = torch.tensor([words.encode(["a"])[0] if words else [0]])
        with torch.no_grad():
            logits = logits_of(model(input_ids=ids))
        found = tuple(logits.shape)
    except Exception as error:  # a config may be wrong in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"the model can't answer: {reason:.200}") from None
    if found != (1, outputs):
        raise ValueError(f"the model answers {found} in place of {outputs} numbers")
    check_finite({"its answer": logits}, "the model")
