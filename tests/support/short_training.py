"""A short training with gates; under torchrun it writes what each process got."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from apportion.data.marked import Marked
from apportion.elastic.checkpoint import weights_digest
from apportion.elastic.elastic import Elastic
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.training.loop import Fitted, fit
from apportion.training.recipes import BUDGETED, NESTED


def train(kind: str = "budgeted", **options: Any) -> Fitted:
    """129 rows in batches of 32: the last batch is one row, so one process of two has none."""
    task = Marked(length=12, values=4, distractors=2, train=129, validation=63, test=64).build()
    torch.manual_seed(0)
    shape = EncoderConfig(
        task.vocabulary, task.length, layers=2, heads=4, hidden=16, feedforward=64
    )
    model = Elastic(Encoder(shape), ("heads", "feedforward"), length=task.length)
    recipe = BUDGETED.with_changes(epochs=2, batch_size=32)
    if kind == "nested":
        model = model.nested(torch.rand(len(model.units)))
        recipe = NESTED.with_changes(epochs=2, batch_size=32, one_budget=True, average=0.9)
    return fit(model, task, recipe=recipe, seed=3, **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    fitted = train(sys.argv[2])
    facts = {
        "processes": fitted.processes,
        "weights": weights_digest(fitted.model),
        "gates": fitted.model.gates.a.tolist(),
        "readout": fitted.model.model.classifier.weight.tolist(),
    }
    path = Path(sys.argv[1]) / f"{os.environ['RANK']}.json"
    path.write_text(json.dumps(facts))
    torch.distributed.destroy_process_group()
