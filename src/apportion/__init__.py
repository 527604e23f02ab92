"""apportion: one transformer checkpoint, any compute budget."""

from importlib import import_module
from typing import TYPE_CHECKING

from apportion.autoclasses import register_when_imported

if TYPE_CHECKING:
    from apportion.allocation import allocate
    from apportion.benchmark import measure
    from apportion.checkpoint import Checkpoint, load, save
    from apportion.elastic import Elastic
    from apportion.evaluation import evaluate, sweep
    from apportion.heads import HeadMask, prune_heads
    from apportion.progress import training_bar
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
    "training_bar",
]

# The room of each public name; it is imported when the name is first used, for torch takes seconds.
_ROOMS = {
    "Allocation": "units",
    "Checkpoint": "checkpoint",
    "Elastic": "elastic",
    "HeadMask": "heads",
    "Recipe": "recipes",
    "Skipping": "skipping",
    "Units": "units",
    "allocate": "allocation",
    "cut": "surgery",
    "evaluate": "evaluation",
    "fit": "training",
    "load": "checkpoint",
    "measure": "benchmark",
    "prune_heads": "heads",
    "recipe": "recipes",
    "repair": "repairing",
    "save": "checkpoint",
    "sweep": "evaluation",
    "training_bar": "progress",
}

if not TYPE_CHECKING:  # a type checker has the names from above, and finds those that are wrong

    def __getattr__(name: str) -> object:
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"apportion.{_ROOMS[name]}"), name)
        globals()[name] = value  # the next time, nobody asks here
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


register_when_imported()
