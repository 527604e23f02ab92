"""The shape of tables that people write: unknown keys and values of the wrong type are errors."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

_CALLED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "nothing",
}


def check(where: str, data: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Complains of a key that is not known, and of a value of the wrong type."""
    unknown = sorted(set(data) - set(hints))
    if unknown:
        known = ", ".join(sorted(hints))
        raise ValueError(f"{where} has unknown keys {', '.join(unknown)}; known: {known}")
    for name, value in data.items():
        hint = hints[name]
        if not _fits(value, hint):
            needed = _CALLED.get(hint, "a table")
            if get_origin(hint) is tuple:
                needed = f"a list, each {_CALLED.get(get_args(hint)[0], 'a table')}"
            elif get_args(hint) and get_origin(hint) is not dict:
                needed = " or ".join(_CALLED.get(one, repr(one)) for one in get_args(hint))
            raise ValueError(f"{where} {name} must be {needed}, not {value!r}")


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, list) and all(_fits(one, arguments[0]) for one in value)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if hint in (int, float):  # bool is a kind of int to Python, but not to people
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, origin or hint)
