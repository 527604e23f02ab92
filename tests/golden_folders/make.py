"""Wrote what stands here, with the package as it was before its rooms had floors.

    PYTHONPATH=tests python tests/golden_folders/make.py

They are read by every later version, so they are not written again. What their models answered then
stands in expected.json.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from pretrained import write_classifier
from texts import CLUES

from apportion.elastic.checkpoint import Checkpoint, save
from apportion.elastic.elastic import Elastic
from apportion.models.hub import tokenizer_of_folder
from apportion.models.reloading import load_folder
from apportion.models.surgery import cut

HERE = Path(__file__).parent
IDS = torch.tensor([[2, 5, 9, 20, 21, 8, 3], [2, 24, 6, 7, 30, 10, 3]])
BUDGETS = (0.25, 0.5, 1.0)


def main() -> None:
    """Writes a nested checkpoint, a cut one, and a cut one that carries its code."""
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as home:
        folder = write_classifier(Path(home), sorted(CLUES))
        model, _ = load_folder(folder)
        words = tokenizer_of_folder(folder)
    elastic = Elastic(model, ("heads", "feedforward"), length=24, block=32).eval()
    elastic = elastic.nested(torch.rand(len(elastic.units)))
    elastic.made_for("nested", floor=1, lowest=0.25)
    notes = {"classes": sorted(CLUES), "method": "order", "seed": 5}
    save(Checkpoint(elastic, notes, words=words), HERE / "checkpoint")
    kept = elastic.allocation(0.5)
    smaller = cut(elastic.plain(), kept).eval()
    save(Checkpoint(smaller, notes, kept, words), HERE / "cut")
    save(Checkpoint(smaller, notes, kept, words), HERE / "self-contained", self_contained=True)
    with torch.no_grad():
        answers = {f"{b:g}": elastic(input_ids=IDS, budget=b).logits.tolist() for b in BUDGETS}
        answers["cut"] = smaller(input_ids=IDS).logits.tolist()
    expected = {"ids": IDS.tolist(), "logits": answers}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
