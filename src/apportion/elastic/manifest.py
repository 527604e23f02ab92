"""The manifest of a checkpoint, apportion.json: what it has to hold, and what is refused.

It has no hash of its own, so nothing in it is believed before it is checked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from apportion.files import read_json
from apportion.method.units import KINDS

FORMAT = "apportion-checkpoint"
VERSION = 1
MANIFEST = "apportion.json"
WEIGHTS = "model.safetensors"
GATES = "gates.safetensors"
CONFIG = "config.json"
WORDS = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
CARD = "README.md"
KINDS_OF_CHECKPOINT = ("dense", "elastic", "cut")
_MOST_UNITS = 1_000_000  # of one kind in one layer: what has to be listed before it is compared


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, checked; without its weights."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        raise ValueError(f"{folder} is not a checkpoint: it has no {MANIFEST}")
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{path} is not the manifest of an apportion checkpoint")
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{folder} is a checkpoint of format version {manifest.get('version')!r}; "
            f"this apportion reads version {VERSION}"
        )
    missing = {"kind", "model", "units", "files", "notes"} - set(manifest)
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
    if manifest["kind"] not in KINDS_OF_CHECKPOINT:
        raise ValueError(f"{path} is of unknown kind {manifest['kind']!r}")
    problem = _problem(manifest)
    if problem:
        raise ValueError(f"{path} is damaged: {problem}")
    return manifest


def _problem(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest, if anything is."""
    kind, files, model = manifest["kind"], manifest["files"], manifest["model"]
    if not isinstance(manifest["notes"], dict):
        return "notes is not a table"
    if not isinstance(model, dict) or not isinstance(model.get("type"), str):
        return "model does not say its type"
    if not isinstance(files, dict) or not all(map(_is_file, files.items())):
        return "files does not hold the bytes and the sha256 of each file of the folder"
    needed = {WEIGHTS, *([GATES] if kind == "elastic" else [])} - set(files)
    if needed:
        return f"files lacks {', '.join(sorted(needed))}"
    for name, of_kind in (("elastic", "elastic"), ("kept", "cut")):
        if (name in manifest) != (kind == of_kind):
            has = "says" if name in manifest else "does not say"
            return f"a checkpoint of kind {kind} {has} what is {name}"
    if kind != "elastic" and GATES in files:
        return f"a checkpoint of kind {kind} has no {GATES}"
    return _problem_of_units(manifest["units"]) or (
        _problem_of_elastic(manifest["elastic"]) if kind == "elastic" else None
    )


def _is_file(named: tuple[str, Any]) -> bool:
    name, facts = named
    return (
        isinstance(facts, dict)
        and is_whole(facts.get("bytes"))
        and isinstance(facts.get("sha256"), str)
        and name == Path(name).name  # a path could lead out of the folder
    )


def _problem_of_units(units: Any) -> str | None:
    runs = units.get("runs") if isinstance(units, dict) else None
    if not isinstance(runs, list) or not runs:
        return "units does not hold runs"
    before = (-1, 0)
    for run in runs:
        if not (isinstance(run, list) and len(run) == 4 and run[1] in KINDS):
            return f"units has a run that is not layer, {' or '.join(KINDS)}, count and cost"
        layer, kind, count, cost = run
        if not (is_whole(layer) and is_whole(count, 1, _MOST_UNITS) and is_number(cost, above=0.0)):
            return f"units has a run of {count!r} {kind} in layer {layer!r} at a cost of {cost!r}"
        if (layer, KINDS.index(kind)) <= before:
            return "units has runs that are not in the order of layers and kinds"
        before = (layer, KINDS.index(kind))
    return None


def _problem_of_elastic(facts: Any) -> str | None:
    checks: dict[str, Callable[[Any], bool]] = {
        "kinds": lambda kinds: (
            isinstance(kinds, list)
            and bool(kinds)
            and all(kinds.count(kind) == 1 for kind in kinds)
            and all(kind in KINDS for kind in kinds)
        ),
        "length": lambda length: is_whole(length, 1, 2**24),
        "tau": lambda tau: is_number(tau, above=0.0),
        "block": lambda block: is_whole(block, 1, 2**24),
    }
    if not isinstance(facts, dict):
        return "elastic is not a table"
    for name, is_good in checks.items():
        if not is_good(facts.get(name)):
            return f"elastic has {name} = {facts.get(name)!r:.80}"
    return None


def is_whole(value: object, least: int = 0, most: float = math.inf) -> bool:
    """Whether a value of JSON is a whole number in a range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, above: float = -math.inf) -> bool:
    """Whether a value of JSON is a number, not infinite, and above another."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value) and value > above
    except OverflowError:  # a whole number that no float can hold
        return False
