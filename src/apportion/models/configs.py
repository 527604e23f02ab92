"""Configs: all that it takes to build a model again, our own encoder or one of Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import torch
from torch import nn

from apportion.files import check, first_line
from apportion.models.autoclasses import class_of
from apportion.models.encoder import Encoder, EncoderConfig


def config_of(model: nn.Module) -> dict[str, Any]:
    """All that it takes to build a model of the same shape, as plain JSON values."""
    if isinstance(model, Encoder):
        return {"model_type": EncoderConfig.model_type, **model.config.to_dict()}
    if is_of_transformers(model):
        config: Any = model.config
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        return {**config.to_dict(), "architectures": [type(model).__name__], "dtype": dtype}
    raise ValueError(f"{type(model).__name__} is not a model that a checkpoint can hold")


def is_of_transformers(model: nn.Module) -> bool:
    """Whether a model is one of Transformers, which is not imported to know it."""
    return any(base.__module__.startswith("transformers.") for base in type(model).__mro__)


def build(config: Mapping[str, Any]) -> nn.Module:
    """A model of the shape that `config_of` gave, before its weights are loaded."""
    if config.get("model_type") != EncoderConfig.model_type:
        return _from_transformers(config)
    shape = {name: value for name, value in config.items() if name != "model_type"}
    try:
        check("it", shape, get_type_hints(EncoderConfig))
        return Encoder(EncoderConfig(**shape))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the config is not one of an encoder: {error}") from None


def _from_transformers(config: Mapping[str, Any]) -> nn.Module:
    values = {name: value for name, value in config.items() if name != "model_type"}
    try:
        (name,) = values["architectures"]
        whole = class_of(name)
        model: nn.Module = whole(whole.config_class.from_dict(values))
        return model.to(getattr(torch, str(values.get("dtype") or "float32")))
    except ValueError:
        raise
    except Exception as error:  # a config may be wrong in any way
        raise ValueError(
            f"the config is not one of a model of Transformers: {first_line(error)}"
        ) from None
