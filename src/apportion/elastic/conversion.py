"""Conversion: a fine-tuned classifier gets a knob, without labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from apportion.data.rows import plain
from apportion.data.task import Split, Task
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.elastic import Elastic, plain_of
from apportion.elastic.repairing import HELD_OUT, REPAIRED_AT, WEIGHTINGS, repair
from apportion.elastic.scoring import BY_LABELS, SOURCES, Scored, nest
from apportion.elastic.searching import check_seconds, search
from apportion.elastic.vouching import AGREEMENT, FEWEST, vouch
from apportion.method.units import UNITS
from apportion.models.labels import class_names, first_few
from apportion.models.readout import reads_first_token
from apportion.models.sites import largest_block

_LENGTH = 128  # tokens of a plain text that are read, if nobody says
_SEED = 0  # of the rows that are held out
Tuned = tuple[Elastic, Mapping[str, Any]]  # a model, and the facts of how it was tuned


@dataclass(frozen=True)
class Converted:
    """A model with a knob, and the facts: its units' scores, and what the repair chose and took."""

    model: Elastic
    facts: Mapping[str, Any]


def convert(
    model: nn.Module,
    texts: Task | Split | Sequence[str],
    *,
    labels: Sequence[int | str] | None = None,
    tokenizer: Any = None,
    held_out: Split | int | None = None,
    length: int | None = None,
    units: str = "all",
    score: str | Callable[[Elastic], Scored] = "fisher",
    nested: bool = True,
    searched: bool | None = None,
    repaired: bool = True,
    tuned: Callable[[Elastic, Task, nn.Module], Tuned] | None = None,
    first_token: bool | None = None,
    agreement: float = AGREEMENT,
    seconds: float | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    **settings: Any,
) -> Converted:
    """A fine-tuned classifier with a knob: its units in an order that is searched, then repaired.

    `texts` are some that it was made for: a task, a split, or plain texts with its `tokenizer`.
    Labels (names or numbers of the model's classes) are needed by some scores only. Each plain
    text is taken once. `held_out` rows, or so many that are drawn (a third), say how far the repair
    is trusted, and which budgets can be vouched for: the model's range begins where every budget
    answers as the whole model on at least so large a share of texts (`agreement`, a lower bound).
    A task has its validation rows for that.

    Nothing is trained, unless the model is `tuned`: what does that, such as `apportion.tuning()`,
    is called with the repaired model, the task with held-out rows as its validation, and the given
    model; its model is the one that is vouched for.

    The order is `searched` unless it is that of another score than Fisher information. `settings`
    are those of `repair`. Where only token 0 is read, the last layer is computed for
    that alone, unless `first_token` is False. Search and repair take as long as they take, or about
    so many `seconds` together. Without `nested`, gates of their own open the units
    in the order of the score, and nothing moves. `progress` is told what is done, how much of it,
    and how much there is. The given model is left alone.
    """
    if units not in UNITS:
        raise ValueError(f"units are one of {', '.join(UNITS)}, not {units!r}")
    if isinstance(score, str) and score not in SOURCES:
        raise ValueError(f"a score is one of {', '.join(SOURCES)}, not {score!r}")
    if tuned is not None and not nested:
        raise ValueError("only one order of all units can be tuned: nested=True")
    check_seconds(seconds)
    given = plain_of(model)
    words = None
    if not isinstance(texts, Task | Split):
        texts, words = _encoded(given, texts, labels, tokenizer, length)
    elif labels is not None or tokenizer is not None:
        raise ValueError(f"a {type(texts).__name__} has its own labels, and is encoded already")
    task, held_out = _task_of(texts, held_out, length, words)
    if score in BY_LABELS and bool((task.train.labels < 0).any()):
        raise ValueError(f"the score {score!r} is of the labels' loss: labels=[…], for all texts")
    elastic = Elastic(
        given,
        UNITS[units],
        length=task.length,
        block=largest_block(given),
        first_token=nested and first_token is not False and reads_first_token(given),
    )
    tell = progress or (lambda what, done, of: None)

    def scored_by(elastic: Elastic) -> Scored:
        if callable(score):
            return score(elastic)
        return SOURCES[score](elastic, task, 0, None, partial(tell, "scoring"))

    if nested:
        elastic, scored = nest(elastic, scored_by)
    else:
        scored = scored_by(elastic)
        elastic.gates.order_by(scored.scores)
        elastic.made_for("hard")
    facts = {"scores": [float(f"{one:.6g}") for one in scored.scores.tolist()], **scored.facts}
    if nested and (score == "fisher" if searched is None else searched):
        half = None if seconds is None else seconds / 2
        elastic, took = search(elastic, task.train, seconds=half, progress=partial(tell, "search"))
        facts |= took
    if not repaired and settings:
        raise ValueError(f"{', '.join(settings)} are settings of a repair, and there is none")
    choosing, vouching = _halves(held_out)
    if repaired:
        if tuned is not None:  # which does what further weightings would
            settings.setdefault("weightings", (WEIGHTINGS[0], WEIGHTINGS[-1]))
            settings.setdefault("until_taken", True)
        settings["progress"] = partial(tell, "repair")
        if seconds is not None:
            settings["seconds"] = max(seconds / 2, seconds - facts.get("search_seconds", 0.0))
        elastic, took = repair(elastic, task.train, held_out=choosing, **settings)
        facts |= took
    if tuned is not None:
        elastic, told = tuned(elastic, replace(task, validation=choosing or task.train), given)
        facts |= told
    as_at_first = settings.get("shares") == ()  # when nothing was held out
    if vouching is not None and (repaired or tuned is not None) and not as_at_first:
        budgets = settings.get("budgets", REPAIRED_AT)
        vouched = vouch(elastic, vouching, whole=given, budgets=budgets, agreement=agreement)
        facts["vouched"] = vouched
        if "agreement" in vouched:
            elastic.made_for("nested", elastic.floor, lowest=vouched.get("from", 1.0))
    return Converted(elastic.eval(), facts)


def _halves(held_out: Split | None) -> tuple[Split | None, Split | None]:
    """Rows that choose how far a repair is trusted, and others that vouch for what comes out.

    A third chooses; a half, where the rest is too few to vouch for anything.
    """
    if held_out is None:
        return None, None
    rows = torch.arange(len(held_out))
    third, half = -(-len(held_out) // 3), -(-len(held_out) // 2)
    count = min(HELD_OUT, third if len(held_out) - third >= FEWEST else half)
    return held_out.take(rows[:count]), held_out.take(rows[count:])


def _task_of(
    rows: Task | Split, held_out: Split | int | None, length: int | None, words: Tokenizer | None
) -> tuple[Task, Split | None]:
    """The rows as a task, and those that the repair may not fit to, if they are named."""
    if isinstance(rows, Task):
        if isinstance(held_out, int):
            raise ValueError("held_out as a number is of a split; a task has validation rows")
        held_out = rows.validation if held_out is None else held_out
        return replace(rows, validation=held_out, length=length or rows.length), held_out
    if held_out is None and len(rows) > 2:
        held_out = len(rows) // 3
    if isinstance(held_out, int):
        if not 0 < held_out < len(rows):
            raise ValueError(f"held_out is 1 to {len(rows) - 1} of the rows, not {held_out}")
        # Files are often sorted by class, and all that follows takes the first of its rows.
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(_SEED))
        rows, held_out = rows.take(order[:-held_out]), rows.take(order[-held_out:])
    width = next(iter(rows.inputs.values())).shape[1]
    others = rows if held_out is None else held_out
    task = Task(
        name="given",
        train=rows,
        validation=others,
        test=others,
        classes=(),
        vocabulary=0,
        length=length or width,
        spec={},
        words=words,
    )
    return task, held_out


def _encoded(
    model: nn.Module,
    texts: Sequence[str],
    labels: Sequence[int | str] | None,
    tokenizer: Any,
    length: int | None,
) -> tuple[Split, Tokenizer]:
    """Plain texts as rows of a model's inputs, and the tokenizer that made them."""
    if isinstance(texts, str):
        raise ValueError("texts are several; give a list of them")
    if tokenizer is None:
        raise ValueError("plain texts need the model's tokenizer: tokenizer=…")
    if labels is not None and len(labels) != len(texts):
        raise ValueError(f"{len(texts):,} texts have as many labels or none, not {len(labels):,}")
    if not isinstance(tokenizer, Tokenizer):
        longest = min(_LENGTH, int(getattr(tokenizer, "model_max_length", _LENGTH)))
        tokenizer = Tokenizer.of(tokenizer, length or longest)
    numbers = torch.full((len(texts),), -1) if labels is None else _numbers(model, labels)
    # Each text once: one that units are chosen and repaired by must not vouch for them as well.
    firsts: dict[str, int] = {}
    for place, text in enumerate(texts):
        firsts.setdefault(plain(text), place)
    once = [texts[place] for place in firsts.values()]
    inputs = tokenizer.pad(tokenizer.encode(once), tokenizer.length)
    return Split(inputs, numbers[list(firsts.values())], tuple(once)), tokenizer


def _numbers(model: nn.Module, labels: Sequence[int | str]) -> Tensor:
    """The number of each label among a model's outputs [rows]."""
    config: Any = model.config
    names = class_names(config) or [str(number) for number in range(config.classes)]
    known: dict[int | str, int] = {name: number for number, name in enumerate(names)}
    if all(name == f"LABEL_{number}" for number, name in enumerate(names)):  # which says nothing
        known |= {str(number): number for number in range(len(names))}
    known |= {number: number for number in range(len(names))}
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise ValueError(
            f"label {unknown[0]!r} is none of the model's classes: {first_few(names)}, "
            f"or 0 to {len(names) - 1}"
        )
    return torch.tensor([known[label] for label in labels])
