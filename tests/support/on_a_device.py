"""Trains, masks, scores and repairs on a device without float64 and on the CPU: writes both."""

from __future__ import annotations

import json
import sys

import accelerate
import torch
from single_precision import DEVICE, single_precision

from apportion.data.marked import Marked
from apportion.elastic import scoring
from apportion.elastic.elastic import Elastic
from apportion.elastic.repairing import repair
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.training import loop as training
from apportion.training.recipes import RECIPES

SHAPE = {"layers": 2, "heads": 4, "hidden": 16, "feedforward": 64}


class OnDevice(accelerate.Accelerator):
    device = DEVICE


class OnCpu(accelerate.Accelerator):
    device = torch.device("cpu")


def fit(start, task, recipe, teacher, accelerator):
    training.Accelerator = accelerator
    return training.fit(start, task, recipe=recipe, seed=3, teacher=teacher).model


def distance(one, other):
    """The largest difference between the weights of two models."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a.detach().cpu() - b.detach()).abs().max()) for a, b in pairs)


def refusals():
    ones = torch.ones(2)
    for attempt in (
        lambda: ones.to(DEVICE).double(),
        lambda: ones.double().to(DEVICE),
        lambda: ones.to(DEVICE) + ones,
    ):
        try:
            attempt()
        except (TypeError, RuntimeError) as error:
            yield str(error)


def main() -> None:
    torch.set_num_threads(1)
    task = Marked(length=12, values=4, distractors=2, train=64, validation=32, test=32).build()
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(task.vocabulary, task.length, **SHAPE)).eval()
    elastic = Elastic(encoder, ("heads", "feedforward"), length=task.length, block=8).eval()
    torch.nn.init.normal_(elastic.gates.a)
    nested = elastic.nested()
    starts = {"dense": encoder, "budgeted": elastic, "adapt": elastic, "nested": nested}
    facts = {"trained": {}, "scores": {}}
    for name, start in starts.items():
        short = RECIPES[name].with_changes(epochs=2, batch_size=32)
        there = fit(start, task, short, encoder, OnCpu)
        with single_precision():
            here = fit(start, task, short, encoder, OnDevice)
        facts["trained"][name] = distance(here, there)
    ids = task.test.inputs["input_ids"]
    for name in ("loss_increase", "squared_gradient"):
        there = getattr(scoring, name)(elastic, task.validation).scores
        with single_precision() as device:
            moved = Elastic(encoder, elastic.kinds, length=task.length, block=8).to(device)
            here = getattr(scoring, name)(moved, task.validation).scores
        facts["scores"][name] = here.tolist(), there.tolist()
    elastic.requires_grad_(False)
    there = elastic(ids, budget=0.4, form="hard")
    repaired, _ = repair(nested, task.train, rows=32)
    with single_precision() as device:
        facts["refused"] = list(refusals())
        here = elastic.to(device)(ids.to(device), budget=0.4, form="hard").cpu()
        facts["repaired"] = distance(repair(nested.to(device), task.train, rows=32)[0], repaired)
    facts["hard"] = here.flatten().tolist(), there.flatten().tolist()
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main()
