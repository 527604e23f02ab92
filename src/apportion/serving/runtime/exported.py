"""An exported folder: what stands in it, and what is checked before it is run.

model.onnx              the graph with all levels
apportion.json          levels, costs, kept units, classes, precision, and the size and SHA-256
                        of each file beside it
tokenizer.json, tokenizer_config.json   what turns texts into the graph's inputs
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apportion.files import read_json, sha256

FORMAT, VERSION = "apportion-export", 1
MANIFEST = "apportion.json"
GRAPH = "model.onnx"
TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"


def is_export(folder: Path) -> bool:
    """Whether a folder holds an exported model."""
    try:
        return read_json(folder / MANIFEST).get("format") == FORMAT
    except ValueError:
        return False


def read_export(folder: Path) -> dict[str, Any]:
    """What an exported folder says of itself, checked."""
    facts = read_json(folder / MANIFEST)
    if facts.get("format") != FORMAT:
        raise ValueError(f"{folder} is not an exported model; `apportion export` writes one")
    if facts.get("version") != VERSION:
        raise ValueError(
            f"{folder} is of version {facts.get('version')!r}, this apportion reads {VERSION}; "
            "export the checkpoint again"
        )
    levels, classes, files = facts.get("levels"), facts.get("classes"), facts.get("files")
    costs, kept, task = facts.get("costs"), facts.get("kept"), facts.get("task")
    good = (
        isinstance(levels, list)
        and levels
        and all(type(level) is float and 0.0 < level <= 1.0 for level in levels)
        and levels == sorted(set(levels))
        and isinstance(costs, list)
        and len(costs) == len(levels)
        and all(type(cost) in (int, float) for cost in costs)
        and isinstance(kept, list)
        and len(kept) == len(levels)
        and facts.get("precision") in ("float32", "int8")
        and (task is None or isinstance(task, dict))
        and isinstance(classes, list)
        and classes
        and all(isinstance(name, str) for name in classes)
        and isinstance(files, dict)
        and {GRAPH, TOKENIZER, SETTINGS} <= set(files)
    )
    if not good:
        raise ValueError(
            f"{folder / MANIFEST} is damaged: levels, costs, kept units, precision, task, classes "
            "or files can't be right"
        )
    return facts


def check_files(facts: Mapping[str, Any], folder: Path) -> None:
    """Complains of a file that is missing, or is not the one that was written."""
    for name, said in facts["files"].items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise ValueError(f"{folder} has no {name}; it is not complete")
        if facts_of_file(path) != said:
            raise ValueError(f"{path} is truncated or was changed: it is not what was exported")


def facts_of_file(path: Path) -> dict[str, Any]:
    """Size and hash of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}
