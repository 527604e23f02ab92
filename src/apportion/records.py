"""Records: one measured point, one JSON line, with where it came from; and safe file writing."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes its place only if all went well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(data)


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
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
