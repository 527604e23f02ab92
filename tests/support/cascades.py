"""A small classifier whose budgets mostly agree, as a checkpoint and as an exported folder."""

from __future__ import annotations

from pathlib import Path

import torch
from pretrained import write_classifier
from texts import CLUES, rows
from torch.nn.functional import cross_entropy

from apportion.elastic.checkpoint import Checkpoint, save
from apportion.elastic.elastic import Elastic, logits_of
from apportion.models.hub import tokenizer_of_folder
from apportion.models.reloading import load_folder
from apportion.serving.runtime.exporting import export

LEVELS = (0.25, 0.5, 1.0)
STEPS = 150


def write_folders(home: Path) -> dict[str, Path]:
    """Both folders of one model, trained for a moment at all of its levels."""
    folder = write_classifier(home / "source", sorted(CLUES))
    words = tokenizer_of_folder(folder)
    torch.manual_seed(5)
    elastic = Elastic(load_folder(folder)[0], ("heads", "feedforward"), length=24, block=32).eval()
    elastic = elastic.nested(torch.rand(len(elastic.units))).made_for("nested", 1, lowest=0.25)
    examples = rows(1600, 77)
    encoded = words.encode([text for _, text in examples])
    labels = torch.tensor([sorted(CLUES).index(label) for label, _ in examples])
    optimiser = torch.optim.Adam(elastic.model.parameters(), lr=3e-3)
    for step in range(STEPS):
        places = torch.randint(0, len(encoded), (32,))
        inputs = words.pad([encoded[place] for place in places.tolist()])
        allocation = elastic.allocation(LEVELS[step % len(LEVELS)])
        loss = cross_entropy(logits_of(elastic(**inputs, allocation=allocation)), labels[places])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    made = Checkpoint(elastic.eval(), {"classes": sorted(CLUES)}, words=words)
    save(made, home / "checkpoint")
    export(made, home / "onnx", levels=LEVELS)
    return {"checkpoint": home / "checkpoint", "onnx": home / "onnx"}
