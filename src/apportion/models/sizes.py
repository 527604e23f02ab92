"""Sizes: what a config asks for, checked against its weights before anything is built.

A config is a few bytes that may ask for any amount of memory. The header of its weights says how
much there is, and the size of that file vouches for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apportion.files import read_json
from apportion.tensor_files import Shape, read_shapes

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# Sizes, and numbers of layers, that cost next to nothing to build without weights.
_SMALL, _FEW = 16_384, 48
_LAYERS = ("layers", "num_hidden_layers", "n_layers", "num_layers")
# Sizes in configs of Transformers, by name; their other numbers allocate nothing.
_SIZES = (
    *_LAYERS,
    *("hidden_size", "dim", "intermediate_size", "hidden_dim", "embedding_size"),
    *("num_attention_heads", "n_heads", "vocab_size", "type_vocab_size", "num_labels"),
    *("max_position_embeddings", "image_size", "patch_size", "num_channels", "pooler_output_size"),
)
_OWN = ("vocabulary", "length", "classes", "layers", "heads", "hidden", "feedforward")
LONGEST = 65_536  # tokens of an encoder whose positions have no weights


def check_sizes(config: Mapping[str, Any], shapes: Mapping[str, Shape], where: object) -> None:
    """Refuses sizes far beyond those of the weights; near ones are compared when weights load."""
    largest = max((size for shape in shapes.values() for size in shape.sizes), default=0)
    numbers = [int(part) for name in shapes for part in name.split(".") if part.isdecimal()]
    layers = max(_FEW, 1 + max(numbers, default=-1))
    for name in (*_SIZES, *_OWN):
        limit = max(_SMALL, largest)
        if name in _LAYERS:
            limit = layers
        elif name == "length":
            limit = LONGEST
        for value in _numbers(config.get(name)):
            if value > limit:
                raise ValueError(
                    f"{where} says {name} = {value!s:.20}, "
                    f"and its weights have no more than {limit}"
                )


def check_folder(folder: Path) -> None:
    """`check_sizes` of a folder of Transformers, if it holds its weights."""
    shapes = _shapes_in(folder)
    if shapes:
        check_sizes(read_json(folder / CONFIG), shapes, folder / CONFIG)


def weights_files(folder: Path) -> set[str]:
    """The names of the files that hold the weights of a folder of Transformers."""
    index = folder / INDEX
    if not index.is_file():
        return {WEIGHTS}
    parts = read_json(index).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
        raise ValueError(f"{index} does not say which file holds which weights")
    return set(parts.values())


def _shapes_in(folder: Path) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name in sorted(weights_files(folder)):
        if Path(name).name == name and (folder / name).is_file():
            shapes |= read_shapes(folder / name)
    return shapes


def check_weights(empty: nn.Module, folder: Path) -> None:
    """Refuses weights that are far too few for a model, or integers where it has floats.

    Other misfits are found, and named, when they are loaded.
    """
    shapes, state = _shapes_in(folder), empty.state_dict()
    held = sum(torch.Size(shape.sizes).numel() for shape in shapes.values())
    wanted = sum(value.numel() for value in state.values())
    if wanted > 2 * held + 10_000_000:
        raise ValueError(
            f"{folder / CONFIG} describes a model of {wanted:,} numbers, "
            f"and its weights have {held:,}"
        )
    odd = _other_type(state, shapes)
    if odd:
        raise ValueError(f"the weights of {folder} do not fit its config: {odd}")


def difference(expected: Mapping[str, Tensor], found: Mapping[str, Shape]) -> str | None:
    """The first tensor that is missing, unexpected, or of another size or type, in words."""
    wanted = {name: tuple(value.shape) for name, value in expected.items()}
    there = {name: shape.sizes for name, shape in found.items()}
    if wanted != there:
        odd = sorted(set(wanted.items()) ^ set(there.items()))[0][0]
        return f"{odd} is {there.get(odd, 'missing')}, expected {wanted.get(odd, 'none')}"
    return _other_type(expected, found)


def _other_type(expected: Mapping[str, Tensor], found: Mapping[str, Shape]) -> str | None:
    for name in sorted(set(expected) & set(found)):
        is_float = found[name].dtype in ("F64", "F32", "F16", "BF16")
        if is_float != expected[name].is_floating_point():
            return f"{name} is of type {found[name].dtype}, expected {expected[name].dtype}"
    return None


def _numbers(value: object) -> Iterable[float]:
    """The numbers in a value, which may be a list, or hold numbers as text."""
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, (int, float)):
            yield one
        elif isinstance(one, str) and one.strip().isdecimal():
            yield int(one)
