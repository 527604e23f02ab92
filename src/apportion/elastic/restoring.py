"""A checkpoint's model and words out of its files, each checked before the next is built."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apportion.data.tokenizer import Words
from apportion.elastic.asking import told
from apportion.elastic.consistency import check_heads, check_kept, check_order
from apportion.elastic.elastic import Elastic
from apportion.elastic.manifest import CONFIG, GATES, MANIFEST, SETTINGS, WEIGHTS, WORDS
from apportion.files import Shape, read_json, read_shapes, read_tensors
from apportion.method.units import Allocation, Units
from apportion.models.configs import build
from apportion.models.encoder import EncoderConfig
from apportion.models.reloading import RECORD
from apportion.models.sizes import check_sizes, difference
from apportion.models.surgery import cut


def restore(
    manifest: Mapping[str, Any], folder: Path
) -> tuple[nn.Module, Allocation | None, Words | None]:
    """The model, what a cut kept, and the words, of a folder whose manifest was read."""
    kind = manifest["kind"]
    for name, facts in sorted(manifest["files"].items()):
        path = folder / name
        if not path.exists():
            raise ValueError(f"checkpoint {folder} has no {name}; it is not complete")
        if path.stat().st_size != facts["bytes"] or sha256(path) != facts["sha256"]:
            raise ValueError(
                f"{path} is truncated or was changed: it is not the file that was saved"
            )
    config = read_config(manifest, folder)
    kept = None
    if kind == "cut":
        kept = Allocation.from_dict(Units.from_dict(manifest["units"]), manifest["kept"])
    model = _load_model(config, kept, folder)
    if kept is not None:
        check_kept(kept, model)
    if kind == "dense":
        check_heads(Units.from_dict(manifest["units"]), model)
    if kind == "elastic":
        facts = manifest["elastic"]
        model = Elastic(
            model, facts["kinds"], length=facts["length"], tau=facts["tau"], block=facts["block"]
        )
        if model.units.to_dict() != manifest["units"]:
            raise ValueError(f"checkpoint {folder} lists other units than its model has")
        gates = read_tensors(folder / GATES)
        if "order" in gates:
            model.gates.fix_order(gates["order"])
            check_order(gates["order"], model.units)
        _check_weights(model.gates.state_dict(), read_shapes(folder / GATES), folder)
        _load_weights(model.gates, gates)
        try:
            told(model, facts, manifest["notes"])
        except ValueError as error:
            raise ValueError(f"{folder / MANIFEST} can't be right: {error}") from None
    words = None
    if WORDS in manifest["files"]:
        settings = read_json(folder / SETTINGS) if SETTINGS in manifest["files"] else None
        words = Words.from_json((folder / WORDS).read_text(encoding="utf-8"), settings)
    return model.eval(), kept, words


def _load_model(config: Mapping[str, Any], kept: Allocation | None, folder: Path) -> nn.Module:
    """The plain model, once its config is known to ask for the weights that are there."""
    shapes = read_shapes(folder / WEIGHTS)
    check_sizes(config, shapes, folder)
    with torch.device("meta"):
        _check_weights(cut_as(config, build(config), kept).state_dict(), shapes, folder)
    model = cut_as(config, build(config), kept)
    _load_weights(model, read_tensors(folder / WEIGHTS))
    return model


def cut_as(config: Mapping[str, Any], model: nn.Module, kept: Allocation | None) -> nn.Module:
    """A model without the units that were not kept, unless it was built in its sizes."""
    return model if kept is None or RECORD in config else cut(model, kept)


def read_config(manifest: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a checkpoint's model is built from: its own values, or those in config.json."""
    model = manifest["model"]
    if CONFIG in manifest["files"]:
        config = read_json(folder / CONFIG)
        if config.get("model_type") != model["type"]:
            raise ValueError(
                f"{folder} holds a model of type {model['type']!r}, and its {CONFIG} is of "
                f"{config.get('model_type')!r}"
            )
        return config
    if model["type"] != EncoderConfig.model_type:
        raise ValueError(f"{folder} holds a model of unknown type {model['type']!r}")
    return {"model_type": model["type"], **model["config"]}


def _load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    floats = {value.dtype for value in weights.values() if value.is_floating_point()}
    if len(floats) == 1:
        module.to(floats.pop())  # as it was saved; gates are always of one precision
    module.load_state_dict(dict(weights))


def _check_weights(
    expected: Mapping[str, Tensor], found: Mapping[str, Shape], folder: Path
) -> None:
    odd = difference(expected, found)
    if odd:
        raise ValueError(
            f"the weights in {folder} are of another model than its {MANIFEST} says: {odd}"
        )


def sha256(path: Path) -> str:
    """The hash of a file."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()
