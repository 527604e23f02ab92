"""A small nested classifier of texts with its data, as a checkpoint that can be exported."""

from __future__ import annotations

from pathlib import Path

import torch
from pretrained import write_classifier
from texts import CLUES, folder

from apportion.elastic.checkpoint import Checkpoint
from apportion.elastic.elastic import Elastic
from apportion.models.hub import tokenizer_of_folder
from apportion.models.reloading import load_folder


def nested_checkpoint(home: Path) -> Checkpoint:
    """Random weights, large enough that a lost unit is seen; its data lies in `home / data`."""
    classifier = write_classifier(home / "classifier", sorted(CLUES))
    torch.manual_seed(2)
    elastic = Elastic(load_folder(classifier)[0], ("heads", "feedforward"), length=24, block=32)
    with torch.no_grad():
        for parameter in elastic.eval().model.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    elastic = elastic.nested(torch.rand(len(elastic.units))).made_for("nested", 1, lowest=0.25)
    data = folder(home / "data", train=60, test=24)
    task = {"kind": "text", "data": str(data), "length": 32, "train": 40, "validation": 20}
    notes = {"classes": sorted(CLUES), "task": task}
    return Checkpoint(elastic, notes, words=tokenizer_of_folder(classifier))
