"""Tensors in files: safetensors alone, so that nothing is unpickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, header: dict[str, str] | None = None
) -> None:
    """Writes tensors by name, from any device and in any layout.

    Tied ones, which share their memory, are written once for each name: a model that ties them
    reads the same values twice.
    """
    from safetensors.torch import save_file

    ready: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        ready[name] = value.clone() if place in places else value
        places.add(place)
    # A full disk shows as a SafetensorError; to a caller it is a failed write like any other.
    try:
        path.touch()
        mode = path.stat().st_mode
        save_file(ready, path, metadata=header)
        path.chmod(mode)  # the library puts another file there, which only its owner can read
    except SafetensorError as error:
        raise OSError(str(error)) from error


class Shape(NamedTuple):
    """What a file's header says of a tensor."""

    dtype: str
    sizes: tuple[int, ...]


def read_shapes(path: Path) -> dict[str, Shape]:
    """The shapes of the tensors in a file, by name; the tensors are not read."""
    with _opened(path) as file:
        return {
            name: Shape(part.get_dtype(), tuple(part.get_shape()))
            for name in file.keys()  # noqa: SIM118 - not a dict
            for part in (file.get_slice(name),)
        }


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a file by name."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except Exception as error:  # the library's own errors, and others for odd types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not readable as safetensors: {reason}") from None
