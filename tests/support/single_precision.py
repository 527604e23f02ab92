"""A stand-in for a device without float64, as Apple's GPUs are: the CPU under another name.

Where a float64 tensor would be made on it, or the CPU's tensors are mixed with its own, it fails
as such a device does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "single"


class Module(_DummyBackendModule):
    """What torch asks of a device's module: random numbers, which are the CPU's."""

    def get_rng_state(self, _device: object) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, _device: object) -> None:
        torch.set_rng_state(state)


_setup_privateuseone_for_python_backend(NAME, Module())
DEVICE = torch.device(NAME, 0)
ACROSS = ("_to_copy", "copy_", "index", "set_data")  # what may read tensors of two devices


class Single(Tensor):
    """A tensor that lies on the device, by what it says; its values are a tensor on the CPU."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> Single:
        if values.dtype == torch.float64:
            raise TypeError(f"the device {NAME} has no float64")
        made = Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        made.values = values
        return made

    # With these two, a module that is moved keeps its parameters, which an optimizer holds already.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], *_: object) -> Single:
        return Single(parts["values"])

    @classmethod
    def __torch_dispatch__(cls, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(op, args, kwargs or {})


class Dispatch(TorchDispatchMode):
    """Sees every operation, those that only make a tensor too."""

    def __torch_dispatch__(self, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(op, args, kwargs or {})


class FromNumbers(TorchFunctionMode):
    """Tensors from Python's numbers go by way of the CPU: no other operation sees them made."""

    def __torch_function__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function not in (torch.tensor, torch.as_tensor):
            return function(*args, **kwargs)
        device = kwargs.pop("device", None)
        made = function(*args, **kwargs)
        return made if device is None else made.to(device)


def run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on the values; what it makes is on the device if what it reads is."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = [leaf for leaf in given if isinstance(leaf, Single)]
    wanted = kwargs.get("device")
    here = bool(ours) if wanted is None else torch.device(wanted).type == NAME
    strangers = [leaf for leaf in given if not isinstance(leaf, Single) and leaf.dim()]
    if ours and strangers and op._overloadpacket.__name__ not in ACROSS:
        raise RuntimeError(f"{op}: some tensors are on the device {NAME}, and others are not")
    values, options = tree_map(lambda x: x.values if isinstance(x, Single) else x, (args, kwargs))
    if wanted is not None:
        options["device"] = torch.device("cpu")
    made = op(*values, **options)
    returned = op._schema.returns
    if not returned:
        return None
    if returned[0].alias_info is not None and returned[0].alias_info.is_write:
        return args[0]  # what was written into
    return tree_map(lambda x: Single(x) if here and isinstance(x, Tensor) else x, made)


@contextmanager
def single_precision() -> Iterator[torch.device]:
    """Inside, there is such a device."""
    with pytest.MonkeyPatch.context() as patch, FromNumbers(), Dispatch():
        patch.setattr(torch, "inference_mode", torch.no_grad)  # tensors of a class can't be in it
        yield DEVICE
