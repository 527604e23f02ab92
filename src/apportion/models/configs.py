"""The models that are gated and cut: our own encoder, and pretrained ones of Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

from torch import nn

from apportion.files import check
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.models.hub import from_config, is_of_transformers


def config_of(model: nn.Module) -> dict[str, Any]:
    """All that it takes to build a model of the same shape, as plain JSON values."""
    if isinstance(model, Encoder):
        return {"model_type": EncoderConfig.model_type, **model.config.to_dict()}
    if is_of_transformers(model):
        config: Any = model.config
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        return {**config.to_dict(), "architectures": [type(model).__name__], "dtype": dtype}
    raise ValueError(f"{type(model).__name__} is not a model that a checkpoint can hold")


def build(config: Mapping[str, Any]) -> nn.Module:
    """A model of the shape that `config_of` wrote down; its weights are yet to be loaded."""
    if config.get("model_type") != EncoderConfig.model_type:
        return from_config(config)
    shape = {name: value for name, value in config.items() if name != "model_type"}
    try:
        check("it", shape, get_type_hints(EncoderConfig))
        return Encoder(EncoderConfig(**shape))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the config is not one of an encoder: {error}") from None
