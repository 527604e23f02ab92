"""Files: written whole or not at all, held by one process at a time, read without surprises.

A file or folder is written under a name beside its own, `.NAME.OWNER.part`, and then moved. What a
killed process leaves behind is removed by the next one that writes the same name.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_MACHINE = f"{zlib.crc32(platform.node().encode()):08x}"  # process ids of another mean nothing here
_OWNER = re.compile(r"(\d+)-([0-9a-f]{8})-[0-9a-f]{8}")  # process, machine, a number drawn
_NO_OWNER = re.compile(r"[a-z0-9_]{8}")  # as version 0.1 named them
_own_parts: set[Path] = set()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes its place only if all went well."""
    path = resolved(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with part_of(path) as part:
        part.touch(exist_ok=False)
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)


@contextmanager
def part_of(path: Path, alone: bool = False) -> Iterator[Path]:
    """A name for what is to become `path`, which is removed at the end if it is still there.

    Parts of processes that are gone are removed first or, where this one is `alone` in writing
    there, all of them.
    """
    _sweep(path, alone)
    owner = f"{os.getpid()}-{_MACHINE}-{secrets.token_hex(4)}"
    part = path.with_name(f".{path.name}.{owner}.part")
    _own_parts.add(part)
    try:
        yield part
    finally:
        _own_parts.discard(part)
        remove(part)


def _sweep(path: Path, alone: bool) -> None:
    for part in list(path.parent.glob(f".{glob.escape(path.name)}.*.part")):
        owner = part.name.removeprefix(f".{path.name}.").removesuffix(".part")
        if _is_gone(owner, part, alone):
            remove(part)


def _is_gone(owner: str, part: Path, alone: bool) -> bool:
    """Whether nobody writes a part any more, going by its name."""
    found = _OWNER.fullmatch(owner)
    if found is None or alone:
        return alone and bool(found or _NO_OWNER.fullmatch(owner))
    process, machine = int(found[1]), found[2]
    if machine != _MACHINE:
        return False
    if process == os.getpid():
        return part not in _own_parts  # in a container, every run may have the same number
    return not _is_running(process)


def _is_running(process: int) -> bool:
    if sys.platform == "win32":
        return True  # signal 0 would end it there
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def put(part: Path, folder: Path) -> None:
    """Moves a written folder to its place; what stood there goes only when the new one stands."""
    for written in part.iterdir():
        with written.open("rb+") as file:
            os.fsync(file.fileno())
    previous = previous_of(folder)
    if folder.exists():
        # Between these two moves `present` finds the previous one: a kill loses nothing.
        remove(previous)
        folder.rename(previous)
    try:
        part.rename(folder)
    except OSError:
        if previous.exists():
            previous.rename(folder)
        raise
    remove(previous)


def present(folder: Path) -> Path:
    """The folder, or the one that it was to replace if a kill fell between the two moves."""
    return folder if folder.exists() or not previous_of(folder).exists() else previous_of(folder)


def previous_of(folder: Path) -> Path:
    """Where a folder stands while another takes its place."""
    return folder.with_name(f".{folder.name}.previous")


def remove(path: Path) -> None:
    """Removes a file, a link or a folder, if it is there and can be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Removes a file, if it is there, and what killed writes of it left."""
    path = resolved(path)
    _sweep(path, alone=False)
    remove(path)


def resolved(path: Path) -> Path:
    """The path that a link leads to; a loop of links leads to itself."""
    return Path(os.path.realpath(path))


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(data)


@contextmanager
def holding(*paths: Path) -> Iterator[bool]:
    """These files or folders are this process's alone inside; if another has one, it is refused.

    The locks end with their process, however it ends. False where the file system has no locks.
    """
    with ExitStack() as held:
        named = {_lock_file(path): path for path in paths}
        locked = [_lock(place, named[place], held) for place in sorted(named)]
        yield all(locked)


def _lock_file(path: Path) -> Path:
    path = resolved(path)
    return path.parent / f".{path.name}.lock"


def _lock(place: Path, path: Path, held: ExitStack) -> bool:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
            with ExitStack() as opened:
                opened.callback(os.close, handle)
                has_locks = _try_lock(handle)
                if has_locks and not _is_at(place, handle):
                    continue  # whoever had it removed the file in the meantime
                held.push(opened.pop_all())
                held.callback(_unlink, place)
                return has_locks
    except BlockingIOError:
        raise BlockingIOError(
            f"another process is writing {path}; wait until it ends, or choose another place"
        ) from None
    except OSError as error:
        raise type(error)(f"could not write {path}: {error.strerror or error}") from error


def _try_lock(handle: int) -> bool:
    """Whether the lock is ours; false where there are none. Somebody else's is an error."""
    if sys.platform == "win32":
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(str(error)) from None
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # some network file systems
        return False
    return True


def _is_at(place: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), place.stat())
    except FileNotFoundError:
        return False


def _unlink(place: Path) -> None:
    with suppress(OSError):  # an open file stays where it is on Windows
        place.unlink()


def read_json(path: Path) -> dict[str, Any]:
    """The table in a JSON file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"{path} is not readable as JSON: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return values


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def sha256(path: Path) -> str:
    """The hash of a file."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


def first_line(error: BaseException) -> str:
    """What went wrong: messages of libraries are long, and their first line says it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def json_text(values: Mapping[str, Any], what: str) -> str:
    """A table as the text of a JSON file, which `read_json` reads."""
    try:
        return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} can't be written as JSON: {error}") from None


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
