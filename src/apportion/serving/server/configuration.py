"""The configuration of a server as a TOML file: every key has a default, unknown ones are wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

from apportion.files import check
from apportion.serving.server.terms import TIERS, Capacity, Config, Limits, Promised, Rule, Tier

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_config(path: Path) -> Config:
    """The configuration in a TOML file; an unknown key is an error that names the known ones."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no configuration {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name}: not TOML: {error}") from None
    try:
        return config_of(tables, path.parent)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


_FILE = {
    "model": dict,
    "machine": dict,
    "tier": tuple[dict[str, Any], ...],
    "keys": dict,
    "limits": dict,
    "policy": dict,
    "certificate": dict,
}


def config_of(tables: Mapping[str, Any], home: Path) -> Config:
    """The configuration that the tables of a file describe; `home` is where its paths begin."""
    check("the file", tables, _FILE)
    check("[model]", tables.get("model", {}), {"name": str})
    check("[keys]", tables.get("keys", {}), {"file": str})
    name = tables.get("model", {}).get("name", "")
    if name and (not name.isprintable() or set(name) & set(": /?#")):
        raise ValueError(f"[model] name is a word without colons and slashes, not {name!r}")
    tiers = tuple(_value(Tier, table, f"[[tier]] {n}") for n, table in _numbered(tables))
    names = [tier.name for tier in tiers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two tiers are called {twice[0]!r}")
    machine = _value(Capacity, tables.get("machine", {}), "[machine]")
    limits = _value(Limits, tables.get("limits", {}), "[limits]")
    for where, values in (("[machine]", machine), ("[limits]", limits)):
        for one in fields(values):
            value = getattr(values, one.name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{where} {one.name} is a number above 0, not {value!r}")
    rule = _value(Rule, tables.get("policy", {}), "[policy]")
    if not 0.0 < rule.budget <= 1.0:
        raise ValueError(f"[policy] budget is a number in (0, 1], not {rule.budget!r}")
    if list(rule.worth) != sorted(rule.worth):
        raise ValueError("[policy] worth may not fall: one number per level, the lowest first")
    keys = tables.get("keys", {}).get("file")
    keys = None if keys is None else home / keys
    return Config(name, machine, tiers or TIERS, limits, rule, keys, _promised(tables, home))


def _promised(tables: Mapping[str, Any], home: Path) -> Promised:
    table = tables.get("certificate", {})
    check("[certificate]", table, {"file": str, "audit": float})
    audit = table.get("audit", Promised.audit)
    if not 0.0 <= audit <= 1.0:
        raise ValueError(f"[certificate] audit is a share between 0 and 1, not {audit!r}")
    return Promised(home / table["file"] if "file" in table else None, audit)


def _numbered(tables: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    return list(enumerate(tables.get("tier", ()), 1))


def _value(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    """A frozen value from a table, which may leave out what has a default."""
    check(where, table, get_type_hints(kind))
    needed = [
        one.name
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING and one.name not in table
    ]
    if needed:
        raise ValueError(f"{where} has no {needed[0]}")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})
