"""apportion: one transformer checkpoint, any compute budget."""

from apportion.allocation import allocate
from apportion.benchmark import measure
from apportion.checkpoint import Checkpoint, load, save
from apportion.elastic import Elastic
from apportion.evaluation import evaluate, sweep
from apportion.recipes import Recipe, recipe
from apportion.skipping import Skipping
from apportion.surgery import cut
from apportion.training import fit
from apportion.units import Allocation, Units

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "Checkpoint",
    "Elastic",
    "Recipe",
    "Skipping",
    "Units",
    "allocate",
    "cut",
    "evaluate",
    "fit",
    "load",
    "measure",
    "recipe",
    "save",
    "sweep",
]
