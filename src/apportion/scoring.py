"""Sources of scores other than learned gates, each a tensor [units] for `allocate`."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion.elastic import Elastic
from apportion.evaluation import logits_of
from apportion.sites import find_sites, layers_path
from apportion.tasks import Split, Task
from apportion.units import Units

_SCORED_ROWS = 1000  # training rows that a gradient is taken over
_BATCH = 32


@dataclass(frozen=True)
class Scored:
    """Scores of the units, and what it took to get them."""

    scores: Tensor
    facts: Mapping[str, Any]


def loss_increase(model: Elastic, split: Split) -> Scored:
    """How much the loss on a split rises when each unit alone is switched off.

    The paper's post-hoc baseline; the split is validation, never test. What lies below a unit
    does not change when it is switched off, so it is computed once for all of them.
    """
    model = copy.deepcopy(model).eval()
    units = model.units
    rises = torch.zeros(len(units), dtype=torch.float64)
    whole_seconds, seconds = 0.0, 0.0
    with torch.inference_mode():
        for inputs, labels in split.batches(_BATCH):
            started = time.perf_counter()
            with _remembering(model.model) as seen:
                whole = _loss(model, inputs, labels, torch.ones(len(units)))
            whole_seconds += time.perf_counter() - started
            for layer in {unit.layer: None for unit in units}:
                with _from_layer(model.model, layer, seen):
                    for position, unit in enumerate(units):
                        if unit.layer == layer:
                            z = torch.ones(len(units))
                            z[position] = 0.0
                            rises[position] += float(_loss(model, inputs, labels, z) - whole)
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
    batches = [split.batch(part, padded=True) for part in rows]
    started = time.perf_counter()
    for inputs, labels in batches:
        _loss(model, inputs, labels, torch.ones(len(model.units)))
    return (time.perf_counter() - started) * len(split) / sum(map(len, rows))


def squared_gradient(model: Elastic, split: Split) -> Scored:
    """Σ over rows of (∂loss/∂z_u)², with all gates open: how much the loss bends at each unit.

    Of training rows; no unit has to be switched off, so it costs about two passes in all.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    scores = torch.zeros(len(model.units), dtype=torch.float64)
    rows = torch.arange(min(_SCORED_ROWS, len(split)))
    started = time.perf_counter()
    for inputs, labels in Split(*split.batch(rows)).batches(_BATCH):
        # A gate an example, so that gradients are squared before they are summed.
        z = torch.ones(len(labels), len(model.units), requires_grad=True)
        (gradient,) = torch.autograd.grad(_loss(model, inputs, labels, z), z)
        scores += gradient.double().square().sum(dim=0)
    facts = {"rows": len(rows), "seconds": round(time.perf_counter() - started, 1)}
    return Scored(scores / len(rows), facts)


def random(units: Units, seed: int) -> Scored:
    """Scores that mean nothing: the floor that every method has to beat."""
    return Scored(torch.rand(len(units), generator=torch.Generator().manual_seed(seed)), {})


def learned(teacher: Elastic | None) -> Scored:
    """What another model's gates learned, as scores for this one: is the order alone worth it?"""
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


def nest(model: Elastic, score: Callable[[Elastic], Scored]) -> tuple[Elastic, Scored]:
    """A nested elastic model with the scores of its units, in the order in which they stand now.

    Neurons are scored one by one and sorted, so that a block holds those that are wanted alike.
    """
    fine = Elastic(model.plain(), model.kinds, model.length, model.gates.tau, block=1)
    scored = score(fine)
    arranged = fine.nested(scored.scores * fine.units.shares)  # inside a layer, by score alone
    sorted_scores = torch.cat(
        [scored.scores[span].sort(descending=True).values for span in fine.units.spans.values()]
    )
    coarse = Elastic(arranged.plain(), model.kinds, model.length, model.gates.tau, model.block)
    scores = torch.cat(
        [
            sorted_scores[fine.units.spans[key]].view(span.stop - span.start, -1).sum(dim=1)
            for key, span in coarse.units.spans.items()
        ]
    )
    coarse.gates.order_by(scores)
    return coarse.nested(scores), Scored(scores, scored.facts)


# By name, as experiment files call them: from a model, its task, a seed and a teacher with gates.
SOURCES: dict[str, Callable[[Elastic, Task, int, Elastic | None], Scored]] = {
    "loss-increase": lambda model, task, seed, teacher: loss_increase(model, task.validation),
    "squared-gradient": lambda model, task, seed, teacher: squared_gradient(model, task.train),
    "learned": lambda model, task, seed, teacher: learned(teacher),
    "random": lambda model, task, seed, teacher: random(model.units, seed),
    "uniform": lambda model, task, seed, teacher: uniform(
        squared_gradient(model, task.train), model.units
    ),
}


def _loss(model: Elastic, inputs: Mapping[str, Tensor], labels: Tensor, z: Tensor) -> Tensor:
    return F.cross_entropy(logits_of(model(**inputs, z=z)), labels, reduction="sum")


class _Recall(nn.Module):
    """In place of a module: returns what that returned before."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: object, **__: object) -> Any:
        return self.output


@contextmanager
def _remembering(model: nn.Module) -> Iterator[dict[str, Any]]:
    """What each layer and each attention returns in a call, by its name."""
    seen: dict[str, Any] = {}
    hooks = []
    for name in (*_layer_names(model), *_attention_names(model).values()):
        module = model.get_submodule(name)
        hooks.append(
            module.register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: out}))
        )
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _from_layer(model: nn.Module, layer: int, seen: Mapping[str, Any]) -> Iterator[None]:
    """Layers below this one, and its own attention before the gates, are recalled meanwhile."""
    names = _layer_names(model)[:layer]
    own = _attention_names(model).get(layer)
    names += [own] if own else []
    before = {name: model.get_submodule(name) for name in names}
    for name in names:
        model.set_submodule(name, _Recall(seen[name]))
    try:
        yield
    finally:
        for name, module in before.items():
            model.set_submodule(name, module)


def _layer_names(model: nn.Module) -> list[str]:
    above = layers_path(model)
    return [f"{above}.{number}" for number, _ in model.get_submodule(above).named_children()]


def _attention_names(model: nn.Module) -> dict[int, str]:
    """Attention modules that end before the gates, which stand at their output projection."""
    return {
        site.layer: site.attention
        for site in find_sites(model, ("heads",))
        if site.attention and not site.output.startswith(f"{site.attention}.")
    }
