"""Cut models of Transformers: classes that build themselves in the sizes their config records.

`CutBertForSequenceClassification` is `BertForSequenceClassification` for a `CutBertConfig`, whose
field `apportion` says what was kept; so it is with every class of Transformers. They are made when
they are first asked for. A folder that loads without apportion carries a copy of this file.
"""

from __future__ import annotations

from typing import Any

import transformers

from apportion.models.shortening import shorten_by
from apportion.models.shrinking import CUT_CLASS, CUT_TYPE, shrink

AUTO = (
    "AutoModel",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForImageClassification",
)


class CutConfig:
    """Mixed into a config class: once one is read, the Auto classes know its cut models."""

    @classmethod
    def from_dict(cls, *args: Any, **kwargs: Any) -> Any:
        """A config from the values of a config.json."""
        whole = cls.__mro__[2]
        for name in AUTO:
            auto = getattr(transformers, name)
            if whole in auto._model_mapping and cls not in auto._model_mapping:
                auto.register(cls, __getattr__(CUT_CLASS + auto._model_mapping[whole].__name__))
        return super().from_dict(*args, **kwargs)  # type: ignore[misc]


class CutModel:
    """Mixed into a model class: its models start out in the sizes of a cut one."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        shrink(self, config.apportion)  # type: ignore[arg-type]
        shorten_by(self, config.apportion)  # type: ignore[arg-type]


def __getattr__(name: str) -> Any:
    """The class of this name, made at its first lookup: a pickle or a folder knows only names."""
    if name in globals():
        return globals()[name]
    whole: Any = getattr(transformers, name.removeprefix(CUT_CLASS), None)
    if not name.startswith(CUT_CLASS) or whole is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made: type
    if issubclass(whole, transformers.PretrainedConfig):
        members = {"model_type": CUT_TYPE + whole.model_type, "__module__": __name__}
        made = type(name, (CutConfig, whole), members)
    else:
        config = __getattr__(CUT_CLASS + whole.config_class.__name__)
        made = type(name, (CutModel, whole), {"config_class": config, "__module__": __name__})
    return globals().setdefault(name, made)
