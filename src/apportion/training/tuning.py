"""Tuning: the budgets of a converted model learn what the whole model answers, in some minutes.

Least squares fit one site after the other. Tuning moves all weights at once, by the divergence of
the answers themselves: a few thousand views of texts, each at one budget. It needs no labels, since
the model that was given is the teacher, and it goes as far as texts say that it never saw.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from apportion.data.task import Split, Task
from apportion.elastic.conversion import Tuned
from apportion.elastic.elastic import Elastic, check_elastic, logits_of
from apportion.elastic.regaining import regain
from apportion.elastic.repairing import REPAIRED_AT, answers_as_before
from apportion.elastic.searching import check_seconds
from apportion.elastic.vouching import answers_of, apart
from apportion.training.loop import fit
from apportion.training.progress import Tick
from apportion.training.recipes import recipe

ROWS = 4000  # views of texts that it learns from, if nobody says
_USUAL = 64  # tokens of a text: of shorter ones as many times the views, since each says less
_MOST_TIMES = 4
FEWEST = 256  # of them: below that it is not worth its while
_MOST_VIEWS = 20  # of one text
_SHARE = 0.5  # of the time that search, repair and tuning have together
# What a row takes, in passes through the whole model: the teacher's own; then forwards, and twice
# that backwards, at budgets of 0.6 on average, which are slower than their share.
_PASSES = 1.0 + 3.0 * 0.6 * 1.2
# Of the way to the learned weights; 0, as it was, can always be had.
_SHARES = (0.25, 0.5, 0.75, 1.0)
_GIVEN_UP = 0.01  # of its answers: what the whole budget may change more, as others gain much
# What a row takes that chooses among them: the whole model's own answer, then all budgets of each.
_CHOOSING_PASSES = 1.0 + (1 + len(_SHARES)) * sum(REPAIRED_AT) * 1.2
_CHOOSING_SHARE, _FEWEST_CHOOSING = 0.25, 64  # of the time, and rows
_TIMED = 64  # rows


def tuning(
    *,
    rows: int = ROWS,
    seconds: float | None = None,
    seed: int = 7,
    progress: Callable[[Tick], None] | None = None,
) -> Callable[[Elastic, Task, nn.Module], Tuned]:
    """What `convert(…, tuned=tuning())` does after the repair.

    It learns from so many views of the task's texts, or from as many as there is time for in about
    so many `seconds`; then what it finds depends on the machine.
    """
    check_seconds(seconds)
    return partial(tune, rows=rows, seconds=seconds, seed=seed, progress=progress)


def tune(
    model: Elastic,
    task: Task,
    whole: nn.Module,
    *,
    rows: int = ROWS,
    seconds: float | None = None,
    seed: int = 7,
    progress: Callable[[Tick], None] | None = None,
) -> Tuned:
    """A nested model whose budgets have learned the answers of the `whole` one, and what it took.

    It learns from so many `rows`, views of texts; of short texts from up to four times as many.
    Then the whole budget makes up for what it lost with the units that are its own (`regain`).
    Validation rows of the task, whose labels are not looked at, decide how far it goes: the share
    of the way from the old weights to the learned ones with the smallest Σ_B √KL(whole ‖ B), of
    those at which the whole budget still answers as the whole model. The given model is left alone.
    """
    if task.words is None:
        raise ValueError("tuning makes views of texts: give texts and their tokenizer")
    started = time.perf_counter()
    every = [task.train] if task.unlabelled is None else [task.train, task.unlabelled]
    choosing = task.validation
    rows = round(rows * _times_as_many(task.train))
    if seconds is not None:
        time_for = seconds / _seconds_per_row(whole, task.train)  # so many passes
        most = max(_FEWEST_CHOOSING, int(_CHOOSING_SHARE * time_for / _CHOOSING_PASSES))
        choosing = choosing.take(torch.arange(len(choosing))[:most])
        rows = min(rows, int((time_for - _CHOOSING_PASSES * len(choosing)) / _PASSES))
    if rows < FEWEST:
        return model, {"tuned": {"rows": 0}}
    texts = sum(map(len, every))
    passes = min(_MOST_VIEWS, max(1, round(rows / texts)))
    train = task.train.take(torch.arange(len(task.train))[:rows])
    others = task.unlabelled and task.unlabelled.take(
        torch.arange(len(task.unlabelled))[: max(0, rows - len(train))]
    )
    learned = replace(
        task,
        train=train,
        unlabelled=others if others is not None and len(others) else None,
        validation=_answered(whole, choosing),
    )
    how = recipe("tune-encoder", epochs=passes, views=passes)
    fitted = fit(model, learned, recipe=how, seed=seed, teacher=whole, progress=progress)
    towards = regain(check_elastic(fitted.model), train, whole=whole)
    share, before, after = _far_enough(model, towards, choosing, whole)
    facts = {
        "rows": passes * (len(train) + len(others or ())),
        "share": share,
        "before": round(before, 4),
        "after": round(after, 4),
        "seconds": round(time.perf_counter() - started, 1),
    }
    made = _between(model, towards, share) if share else model
    return made, {"tuned": facts}


def _far_enough(
    model: Elastic, learned: nn.Module, held_out: Split, whole: nn.Module
) -> tuple[float, float, float]:
    """The best share of the way to the learned weights, and Σ_B √KL at its start and there."""
    wanted = answers_of(whole, held_out)
    distances: dict[float, float] = {}
    for share in (0.0, *_SHARES):
        asked = partial(apart, _between(model, learned, share), held_out, wanted=wanted)
        ((whole_budget, agreement),) = asked(budgets=REPAIRED_AT[-1:])
        if share and not answers_as_before(agreement + _GIVEN_UP, len(held_out)):
            break  # further on it is less
        distances[share] = whole_budget + sum(root for root, _ in asked(budgets=REPAIRED_AT[:-1]))
    best = min(distances, key=lambda share: distances[share])
    return best, distances[0.0], distances[best]


def _times_as_many(split: Split) -> float:
    """How many times the views short texts get."""
    if split.lengths is None:
        return 1.0
    return min(max(_USUAL / float(split.lengths.float().mean()), 1.0), _MOST_TIMES)


def shared_out(seconds: float | None, *, tuned: bool) -> tuple[float | None, float | None]:
    """The seconds of search and repair, and those of tuning, of what all of them may take."""
    if seconds is None or not tuned:
        return seconds, None
    return seconds * (1.0 - _SHARE), seconds * _SHARE


@torch.no_grad()
def _between(model: Elastic, learned: nn.Module, share: float) -> Elastic:
    """A copy of a model whose weights are a share of the way to those of another."""
    made = copy.deepcopy(model)
    towards = learned.state_dict()
    for name, value in made.state_dict().items():
        if value.is_floating_point():
            value.lerp_(towards[name].to(value), share)
    return made


@torch.no_grad()
def _answered(whole: nn.Module, split: Split) -> Split:
    """The rows with the class that the whole model gives each: what a budget has to agree with."""
    labels = torch.empty(len(split), dtype=torch.long)
    for rows in torch.split(torch.arange(len(split)), _TIMED):
        labels[rows] = logits_of(whole.eval()(**_inputs(whole, split, rows))).argmax(dim=-1).cpu()
    return replace(split, labels=labels)


@torch.no_grad()
def _seconds_per_row(whole: nn.Module, split: Split) -> float:
    """What a row of usual length takes in a pass through the whole model."""
    rows = torch.arange(len(split))[:_TIMED]
    inputs = _inputs(whole, split, rows)
    whole.eval()(**inputs)  # the first call is slower
    started = time.perf_counter()
    whole(**inputs)
    return (time.perf_counter() - started) / len(rows)


def _inputs(model: nn.Module, split: Split, rows: Tensor) -> dict[str, Tensor]:
    """The inputs of some rows, where the model is."""
    device = next(model.parameters()).device
    return {name: values.to(device) for name, values in split.batch(rows)[0].items()}
