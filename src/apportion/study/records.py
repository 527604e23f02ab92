"""Records: one measured point, one JSON line, with where it came from."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def append(path: Path, *records: Mapping[str, Any]) -> None:
    """Adds records as the last lines of a file, in one durable write."""
    line = "".join(json.dumps(r, sort_keys=True, allow_nan=False) + "\n" for r in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        # A kill in the middle of an append leaves half a line: close it, so that only it is lost.
        if file.tell() and not _ends_with_newline(file):
            line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file, oldest first; half-written lines are left out."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8, so it holds no records: {error}") from None
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def provenance(**more: Any) -> dict[str, Any]:
    """When, with what and on what a number was measured."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(map(_without_folder, sys.argv)),
        **environment(),
        **more,
    }


_PACKAGES = ("apportion", "torch", "accelerate", "tokenizers", "transformers")


@lru_cache(maxsize=1)
def environment() -> dict[str, Any]:
    """The versions and the machine, without anything that names its owner."""
    return {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "machine": {
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def _without_folder(word: str) -> str:
    """A word of the command; of an absolute path only the name, since it says who ran it."""
    option, equals, value = word.rpartition("=")
    return option + equals + Path(value).name if Path(value).is_absolute() else word


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")
