"""apportion: one transformer checkpoint, any compute budget."""

from importlib import import_module
from typing import TYPE_CHECKING

from apportion.models.autoclasses import register_when_imported

if TYPE_CHECKING:
    from apportion.elastic.checkpoint import Checkpoint, load, save
    from apportion.elastic.elastic import Elastic
    from apportion.elastic.evaluation import evaluate, sweep
    from apportion.elastic.head_mask import HeadMask, prune_heads
    from apportion.elastic.repairing import repair
    from apportion.method.allocation import allocate
    from apportion.method.units import Allocation, Units
    from apportion.models.surgery import cut
    from apportion.serving.runtime.exporting import export
    from apportion.serving.runtime.session import Runtime
    from apportion.serving.skipping import Skipping
    from apportion.serving.timing import measure
    from apportion.training.loop import fit
    from apportion.training.progress import training_bar
    from apportion.training.recipes import Recipe, recipe

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "Checkpoint",
    "Elastic",
    "HeadMask",
    "Recipe",
    "Runtime",
    "Skipping",
    "Units",
    "allocate",
    "cut",
    "evaluate",
    "export",
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
    "Allocation": "method.units",
    "Checkpoint": "elastic.checkpoint",
    "Elastic": "elastic.elastic",
    "HeadMask": "elastic.head_mask",
    "Recipe": "training.recipes",
    "Runtime": "serving.runtime.session",
    "Skipping": "serving.skipping",
    "Units": "method.units",
    "allocate": "method.allocation",
    "cut": "models.surgery",
    "evaluate": "elastic.evaluation",
    "export": "serving.runtime.exporting",
    "fit": "training.loop",
    "load": "elastic.checkpoint",
    "measure": "serving.timing",
    "prune_heads": "elastic.head_mask",
    "recipe": "training.recipes",
    "repair": "elastic.repairing",
    "save": "elastic.checkpoint",
    "sweep": "elastic.evaluation",
    "training_bar": "training.progress",
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
