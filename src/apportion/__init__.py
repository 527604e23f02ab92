"""apportion: one transformer checkpoint, any compute budget."""

from apportion.allocation import allocate
from apportion.benchmark import measure
from apportion.checkpoint import Checkpoint, load, save
from apportion.elastic import Elastic
from apportion.evaluation import evaluate, sweep
from apportion.heads import HeadMask, prune_heads
from apportion.recipes import Recipe, recipe
from apportion.repairing import repair
from apportion.skipping import Skipping
from apportion.surgery import cut
from apportion.training import fit
from apportion.units import Allocation, Units

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "Checkpoint",
    "Elastic",
    "HeadMask",
    "Recipe",
    "Skipping",
    "Units",
    "allocate",
    "cut",
    "evaluate",
    "fit",
    "load",
    "measure",
    "prune_heads",
    "recipe",
    "repair",
    "save",
    "sweep",
]
