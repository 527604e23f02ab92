"""Sources of scores other than learned gates, each a tensor [units] for `allocate`."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from apportion.data.task import Split, Task
from apportion.elastic.elastic import Elastic, logits_of, plain_of
from apportion.method.units import Allocation, Units
from apportion.models.activations import attention_names, layer_names, recalling, remembering
from apportion.models.surgery import cut

Progress = Callable[[int, int], None]  # hears how much is done, and how much there is
_Batch = tuple[dict[str, Tensor], Tensor]  # inputs and labels
SCORED_ROWS = 1000  # training rows that a gradient is taken over
FISHER_ROWS = 256
# Shares of the cost that are left when units are scored again; cut down, they are scored sooner.
_LEVELS = (0.6, 0.4, 0.25, 0.17, 0.12, 0.0)
_BATCH = 32


@dataclass(frozen=True)
class Scored:
    """Scores of the units, and what it took to get them."""

    scores: Tensor
    facts: Mapping[str, Any]


def loss_increase(model: Elastic, split: Split, progress: Progress | None = None) -> Scored:
    """How much the loss on a split rises when each unit alone is switched off.

    The paper's post-hoc baseline; the split is validation, never test. Layers below a unit do not
    change when it is switched off, so they are computed once for all units.
    """
    model = copy.deepcopy(model).eval()
    units = model.units
    layers, attentions = layer_names(model.model), attention_names(model.model)
    rises = torch.zeros(len(units), dtype=torch.float64)
    whole_seconds, seconds = 0.0, 0.0
    with torch.inference_mode():
        for batch in _batches(model, split, progress):
            started = time.perf_counter()
            with remembering(model.model, (*layers, *attentions.values())) as seen:
                whole = _summed_loss(model, split, batch, torch.ones(len(units)))
            whole_seconds += time.perf_counter() - started
            for layer in {unit.layer: None for unit in units}:
                below = [*layers[:layer], *([attentions[layer]] if layer in attentions else [])]
                with recalling(model.model, {name: seen[name] for name in below}):
                    for position, unit in enumerate(units):
                        if unit.layer == layer:
                            z = torch.ones(len(units))
                            z[position] = 0.0
                            rises[position] += float(_summed_loss(model, split, batch, z) - whole)
            seconds += time.perf_counter() - started
        padded_seconds = _time_padded(model, split)
    facts = {
        "passes": len(units),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
        # Of the time that a whole pass for each unit takes: over the same batches, where rows of
        # like length are together, and over rows that are all padded to the whole length.
        "share_of_passes": round(seconds / (whole_seconds * len(units)), 4),
        "share_of_padded_passes": round(seconds / (padded_seconds * len(units)), 4),
    }
    return Scored(rises / len(split), facts)


def _time_padded(model: Elastic, split: Split) -> float:
    """Seconds of a whole pass over padded rows, from a few batches of them."""
    rows = torch.split(torch.arange(len(split)), _BATCH)[:4]
    batches = [_moved(model, *split.batch(part, padded=True)) for part in rows]
    started = time.perf_counter()
    for batch in batches:
        _summed_loss(model, split, batch, torch.ones(len(model.units)))
    return (time.perf_counter() - started) * len(split) / sum(map(len, rows))


def squared_gradient(model: Elastic, split: Split, progress: Progress | None = None) -> Scored:
    """Σ over rows of (∂loss/∂z_u)², with all gates open: how much the loss bends at each unit.

    No unit has to be switched off, so it costs about two passes over the training rows.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    scores = torch.zeros(len(model.units), dtype=torch.float64)
    rows = torch.arange(min(SCORED_ROWS, len(split)))
    started = time.perf_counter()
    for batch in _batches(model, split.take(rows), progress):
        # One gate per example, so that gradients are squared before they are summed.
        z = torch.ones(len(batch[1]), len(model.units), requires_grad=True)
        (gradient,) = torch.autograd.grad(_summed_loss(model, split, batch, z), z)
        scores += gradient.double().square().sum(dim=0)
    facts = {"rows": len(rows), "seconds": round(time.perf_counter() - started, 1)}
    return Scored(scores / len(rows), facts)


def fisher(model: Elastic, split: Split, progress: Progress | None = None) -> Scored:
    """The order in which units go when those that matter least go first, again and again.

    What matters is the Fisher information of their gates: the squared gradient for labels that are
    drawn from the whole model's own answers. Texts need no labels for it, and those that the model
    knows by heart still say something. What was worth little beside many others may be worth much
    without them, so the units that are left are scored again at each of some levels.
    """
    started = time.perf_counter()
    left = model.around(model.plain())
    rows = split.take(torch.arange(len(split))[:FISHER_ROWS])
    asked = _labelled_by(left, rows)
    shares = model.units.shares
    alive = torch.arange(len(shares))  # positions of the units that are left
    gone: list[Tensor] = []
    for level in _LEVELS:
        worth = squared_gradient(left, asked).scores / shares[alive]
        worst = worth.argsort(stable=True)
        after = shares[alive].sum() - shares[alive[worst]].cumsum(0)  # what each leaves behind
        going = int((after >= level).sum()) if level else len(worst)
        gone.append(alive[worst[:going]])
        stay = torch.ones(len(alive), dtype=torch.bool)
        stay[worst[:going]] = False
        if progress:
            progress(len(gone), len(_LEVELS))
        if not stay.any():
            break
        smaller = cut(left.plain(), Allocation(left.units, tuple(stay.tolist())))
        left, alive = model.around(smaller), alive[stay]
    scores = torch.empty(len(shares), dtype=torch.float64)
    scores[torch.cat(gone)] = torch.arange(1, len(shares) + 1, dtype=torch.float64)
    facts = {"rows": len(rows), "seconds": round(time.perf_counter() - started, 1)}
    return Scored(scores * shares, facts)  # bought by score per cost, the last to go first


@torch.no_grad()
def _labelled_by(model: Elastic, split: Split) -> Split:
    """The split with labels that are drawn from what a model answers."""
    generator = torch.Generator().manual_seed(0)
    inside, labels = plain_of(model).eval(), split.labels.clone()
    device = next(inside.parameters()).device
    for rows in torch.split(torch.arange(len(split)), _BATCH):
        inputs, _ = split.batch(rows)
        logits = logits_of(inside(**{name: values.to(device) for name, values in inputs.items()}))
        labels[rows] = split.criterion.draw(logits.cpu(), generator)
    return replace(split, labels=labels)


def random(units: Units, seed: int) -> Scored:
    """Scores that mean nothing: the floor that every method has to beat."""
    return Scored(torch.rand(len(units), generator=torch.Generator().manual_seed(seed)), {})


def learned(teacher: Elastic | None) -> Scored:
    """The gates of another model as scores of this one: is their order alone worth it?"""
    if teacher is None:
        raise ValueError("what gates learned needs a teacher that has them")
    return Scored(teacher.gates(0.5).detach(), {})


def uniform(scored: Scored, units: Units) -> Scored:
    """The same share of every layer and kind, the best of each: what a cut by hand would keep."""
    scores = torch.empty(len(units), dtype=torch.float64)
    for span in units.spans.values():
        place = scored.scores[span].argsort(descending=True, stable=True).argsort()
        # Bought by score per cost, so all layers lose their last unit before any loses two.
        scores[span] = (1.0 - (place + 0.5) / len(place)) * units.shares[span]
    return Scored(scores, scored.facts)


def depth(units: Units) -> Scored:
    """Whole layers, the first ones first: what cutting by depth keeps."""
    layers = torch.tensor([unit.layer for unit in units], dtype=torch.float64)
    return Scored((layers.max() + 1.0 - layers) * units.shares, {})


def nest(model: Elastic, score: Callable[[Elastic], Scored]) -> tuple[Elastic, Scored]:
    """A nested elastic model with the scores of its units, in the order in which they stand now.

    Neurons are scored one by one and sorted, so that a block holds those that are wanted alike.
    """
    fine = model.around(model.plain(), block=1)
    scored = score(fine)
    arranged = fine.nested(scored.scores * fine.units.shares)  # inside a layer, by score alone
    sorted_scores = torch.cat(
        [scored.scores[span].sort(descending=True).values for span in fine.units.spans.values()]
    )
    coarse = model.around(arranged.plain())
    scores = torch.cat(
        [
            sorted_scores[fine.units.spans[key]].view(span.stop - span.start, -1).sum(dim=1)
            for key, span in coarse.units.spans.items()
        ]
    )
    coarse.gates.order_by(scores)
    return coarse.nested(scores), Scored(scores, scored.facts)


# By name, as experiment files call them: from a model, its task, a seed, a teacher with gates, and
# whoever is told how far it is.
SOURCES: dict[str, Callable[[Elastic, Task, int, Elastic | None, Progress | None], Scored]] = {
    "loss-increase": lambda model, task, _seed, _teacher, progress: loss_increase(
        model, task.validation, progress
    ),
    "squared-gradient": lambda model, task, _seed, _teacher, progress: squared_gradient(
        model, task.train, progress
    ),
    "fisher": lambda model, task, _seed, _teacher, progress: fisher(model, task.train, progress),
    "learned": lambda _model, _task, _seed, teacher, _progress: learned(teacher),
    "random": lambda model, _task, seed, _teacher, _progress: random(model.units, seed),
    "uniform": lambda model, task, _seed, _teacher, progress: uniform(
        squared_gradient(model, task.train, progress), model.units
    ),
    "uniform-fisher": lambda model, task, _seed, _teacher, progress: uniform(
        fisher(model, task.train, progress), model.units
    ),
    "depth": lambda model, _task, _seed, _teacher, _progress: depth(model.units),
}
BY_LABELS = ("loss-increase", "squared-gradient", "uniform")  # scores of the labels' loss


def _batches(model: Elastic, split: Split, progress: Progress | None) -> Iterator[_Batch]:
    """Batches of a split; after each of them, `progress` hears how many rows are done."""
    split.criterion.check(plain_of(model))
    done = 0
    for inputs, labels in split.batches(_BATCH):
        yield _moved(model, inputs, labels)
        done += len(labels)
        if progress:
            progress(done, len(split))


def _moved(model: Elastic, inputs: Mapping[str, Tensor], labels: Tensor) -> _Batch:
    """A batch on the model's device."""
    device = next(model.parameters()).device
    return {name: values.to(device) for name, values in inputs.items()}, labels.to(device)


def _summed_loss(model: Elastic, split: Split, batch: _Batch, z: Tensor) -> Tensor:
    """The loss of a batch's rows, its units open by z."""
    inputs, labels = batch
    logits = logits_of(model(**inputs, z=z.to(labels.device)))
    return split.criterion.loss(logits, labels, reduction="sum")
