"""Small models that drop tokens, and texts of unlike lengths for them."""

from __future__ import annotations

import torch

from apportion.elastic.elastic import Elastic
from apportion.method.frontier import Frontier
from apportion.method.length import Schedule, geometric

UNITS = ("heads", "feedforward")
LENGTHS = (14, 12, 9, 3)


def texts(width=14, padding=1):
    """Four rows; the shortest has fewer tokens than any layer needs."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 20, (len(LENGTHS), width), generator=generator)
    mask = torch.arange(width) < torch.tensor(LENGTHS)[:, None]
    return {"input_ids": ids.where(mask, padding), "attention_mask": mask.long()}


def alone(rows, number):
    """One row without its padding."""
    count = int(rows["attention_mask"][number].sum())
    return {name: values[number : number + 1, :count] for name, values in rows.items()}


def frontier(layers=3):
    """Crop and drops at the smallest budget, drops alone above."""
    return Frontier(
        (0.25, 0.5, 1.0),
        (0.4, 0.7, 1.0),
        (geometric(layers, 0.58, crop=0.7), geometric(layers, 0.7), Schedule.everything(layers)),
    )


def shortened(model, **options):
    """A nested model of a small plain one, with that frontier."""
    options = {"length": 14, "block": 32, "first_token": True, **options}
    made = Elastic(model, UNITS, **options).nested().made_for("nested", lowest=0.125).eval()
    return made.shortened(frontier(made.units.layers))
