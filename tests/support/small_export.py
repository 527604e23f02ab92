"""A small classifier with a knob, as a folder that ONNX Runtime runs."""

from __future__ import annotations

from pathlib import Path

import torch
from pretrained import write_classifier
from texts import CLUES

from apportion.elastic.checkpoint import Checkpoint
from apportion.elastic.elastic import Elastic
from apportion.models.hub import tokenizer_of_folder
from apportion.models.reloading import load_folder
from apportion.serving.runtime.exporting import export

LEVELS = (0.25, 0.5, 1.0)


def write_export(home: Path) -> Path:
    """Levels 0.25, 0.5 and 1, float32; weights so large that levels answer differently."""
    folder = write_classifier(home / "source", sorted(CLUES))
    torch.manual_seed(2)
    elastic = Elastic(load_folder(folder)[0], ("heads", "feedforward"), length=24, block=32).eval()
    with torch.no_grad():
        for parameter in elastic.model.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    elastic = elastic.nested(torch.rand(len(elastic.units))).made_for("nested", 1, lowest=0.25)
    words = tokenizer_of_folder(folder)
    export(
        Checkpoint(elastic, {"classes": sorted(CLUES)}, words=words), home / "onnx", levels=LEVELS
    )
    return home / "onnx"
