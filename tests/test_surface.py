"""The public surface is closed, and its calls can be read: at most two positions, then names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from torch import Tensor

import apportion

PUBLIC = {name: getattr(apportion, name) for name in apportion.__all__}


def callables(thing: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A public function, or a class's constructor and public methods, each with its name."""
    if not isinstance(thing, type):
        yield thing.__name__, thing
        return
    for name, member in vars(thing).items():
        member = getattr(member, "__func__", member)
        member = getattr(member, "fget", None) or getattr(member, "func", member)
        if inspect.isfunction(member) and (not name.startswith("_") or name == "__init__"):
            yield f"{thing.__name__}.{name}", member


ALL = [
    pytest.param(called, id=name) for thing in PUBLIC.values() for name, called in callables(thing)
]


def types_in(hint: Any) -> Iterator[type]:
    """The types that a hint mentions, however deep."""
    if isinstance(hint, list | tuple):
        for part in hint:
            yield from types_in(part)
    elif get_origin(hint) is not None:
        yield from types_in(get_args(hint))
    elif isinstance(hint, type):
        yield hint


def ours_and_not_public(thing: Any) -> set[str]:
    # Torch is imported late where an exported folder has to do without it.
    hints = get_type_hints(thing, localns={"Tensor": Tensor})
    mentioned = {found for hint in hints.values() for found in types_in(hint)}
    return {
        f"{found.__module__}.{found.__name__}"
        for found in mentioned
        if found.__module__.startswith("apportion") and found not in PUBLIC.values()
    }


@pytest.mark.parametrize("called", ALL)
def test_every_type_of_a_public_signature_is_public(called):
    assert not ours_and_not_public(called)


@pytest.mark.parametrize("name", [name for name, thing in PUBLIC.items() if is_dataclass(thing)])
def test_every_type_of_a_public_field_is_public(name):
    assert not ours_and_not_public(PUBLIC[name])


def test_a_type_that_is_not_public_would_be_found():
    from apportion.data.sources import Source

    def reading(where: Callable[[str], list[Source | None]]) -> None: ...

    reading.__annotations__ = {"where": Callable[[str], list[Source | None]]}
    assert ours_and_not_public(reading) == {"apportion.data.sources.Source"}


@pytest.mark.parametrize("called", ALL)
def test_public_calls_have_two_positions_at_most(called):
    """The numbers of a value (a dataclass) may stand in their order."""
    taken = list(inspect.signature(called).parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positions = [one.name for one in taken if one.kind in kinds and one.name not in ("self", "cls")]
    is_value = called.__name__ == "__init__" and is_dataclass(
        PUBLIC.get(called.__qualname__.split(".")[0])
    )
    assert is_value or len(positions) <= 2, positions
