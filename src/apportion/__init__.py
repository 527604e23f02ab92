"""apportion: one transformer checkpoint, any compute budget."""

from importlib import import_module
from typing import TYPE_CHECKING

from apportion.extras import missing
from apportion.models.autoclasses import register_when_imported

if TYPE_CHECKING:
    from apportion.data.marked import Marked
    from apportion.data.task import Classification, Criterion, Split, Task
    from apportion.data.text import Text
    from apportion.data.tokenizer import Tokenizer
    from apportion.elastic.checkpoint import Checkpoint, load, save
    from apportion.elastic.conversion import Converted, convert
    from apportion.elastic.elastic import Elastic
    from apportion.elastic.evaluation import Outcome, Point, evaluate, sweep
    from apportion.elastic.head_mask import HeadMask, prune_heads
    from apportion.elastic.repairing import repair
    from apportion.elastic.scoring import Scored
    from apportion.method.allocation import allocate
    from apportion.method.frontier import Frontier
    from apportion.method.length import Schedule
    from apportion.method.units import Allocation, Unit, Units
    from apportion.models.encoder import Encoder, EncoderConfig
    from apportion.models.surgery import cut
    from apportion.serving.batch.ray_batch import Answered, predict_on_ray
    from apportion.serving.bench.calibration import calibrate
    from apportion.serving.bench.timing import Latency, measure
    from apportion.serving.guarantees.cascade import Cascade
    from apportion.serving.guarantees.certificate import Certificate, Tested
    from apportion.serving.guarantees.certifying import certify
    from apportion.serving.milliseconds.forecast import Forecast
    from apportion.serving.milliseconds.governor import Governor
    from apportion.serving.runtime.exporting import export
    from apportion.serving.runtime.session import Runtime
    from apportion.serving.runtime.skipping import Skipping
    from apportion.study.report.table import Table
    from apportion.study.reproduction import Reproduction, reproduce
    from apportion.training.course import Trained, train
    from apportion.training.loop import Epoch, Fitted, fit
    from apportion.training.progress import Tick, training_bar
    from apportion.training.recipes import Recipe, recipe
    from apportion.training.tuning import tuning

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "Answered",
    "Cascade",
    "Certificate",
    "Checkpoint",
    "Classification",
    "Converted",
    "Criterion",
    "Elastic",
    "Encoder",
    "EncoderConfig",
    "Epoch",
    "Fitted",
    "Forecast",
    "Frontier",
    "Governor",
    "HeadMask",
    "Latency",
    "Marked",
    "Outcome",
    "Point",
    "Recipe",
    "Reproduction",
    "Runtime",
    "Schedule",
    "Scored",
    "Skipping",
    "Split",
    "Table",
    "Task",
    "Tested",
    "Text",
    "Tick",
    "Tokenizer",
    "Trained",
    "Unit",
    "Units",
    "allocate",
    "calibrate",
    "certify",
    "convert",
    "cut",
    "evaluate",
    "export",
    "fit",
    "load",
    "measure",
    "predict_on_ray",
    "prune_heads",
    "recipe",
    "repair",
    "reproduce",
    "save",
    "sweep",
    "train",
    "training_bar",
    "tuning",
]

# What each room has of them; it is imported when a name is first used, for torch takes seconds.
_ROOMS = {
    "data.marked": "Marked",
    "data.task": "Classification Criterion Split Task",
    "data.text": "Text",
    "data.tokenizer": "Tokenizer",
    "elastic.checkpoint": "Checkpoint load save",
    "elastic.conversion": "Converted convert",
    "elastic.elastic": "Elastic",
    "elastic.evaluation": "Outcome Point evaluate sweep",
    "elastic.head_mask": "HeadMask prune_heads",
    "elastic.repairing": "repair",
    "elastic.scoring": "Scored",
    "method.allocation": "allocate",
    "method.frontier": "Frontier",
    "method.length": "Schedule",
    "method.units": "Allocation Unit Units",
    "models.encoder": "Encoder EncoderConfig",
    "models.surgery": "cut",
    "serving.bench.calibration": "calibrate",
    "serving.milliseconds.forecast": "Forecast",
    "serving.milliseconds.governor": "Governor",
    "serving.batch.ray_batch": "Answered predict_on_ray",
    "serving.guarantees.cascade": "Cascade",
    "serving.guarantees.certificate": "Certificate Tested",
    "serving.guarantees.certifying": "certify",
    "serving.runtime.exporting": "export",
    "serving.runtime.session": "Runtime",
    "serving.runtime.skipping": "Skipping",
    "serving.bench.timing": "Latency measure",
    "study.report.table": "Table",
    "study.reproduction": "Reproduction reproduce",
    "training.course": "Trained train",
    "training.loop": "Epoch Fitted fit",
    "training.progress": "Tick training_bar",
    "training.recipes": "Recipe recipe",
    "training.tuning": "tuning",
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker has the names from above, and finds those that are wrong

    def __getattr__(name: str) -> object:
        if name not in _ROOM_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"apportion.{_ROOM_OF[name]}"), name)
        except ModuleNotFoundError as error:
            raise ImportError(missing(error)) from None
        globals()[name] = value  # the next time, nobody asks here
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


register_when_imported()
