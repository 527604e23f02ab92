"""Writes the pages of reference that the code decides: `python docs/reference_pages.py`.

Commands from their options, experiment files from what may stand in them, the HTTP routes from
docs/openapi.json, extras from pyproject.toml.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from reference_words import MEANINGS, SECTIONS, STARTS
from typer.main import get_command

from apportion.cli import app
from apportion.data.marked import Marked
from apportion.data.text import Text
from apportion.models.encoder import EncoderConfig
from apportion.study.claims import Claim
from apportion.study.experiment import Row
from apportion.study.protocols import Timing
from apportion.study.rules import FILE, STAGE
from apportion.training.recipes import RECIPES, Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parent
_MARKUP = re.compile(r"\[(/?)([a-z ]*)\]")
_LISTED = {"seeds": {"data": tuple[int, ...], "optimisation": tuple[int, ...], "paired": bool}}
_VALUES = {"file": FILE, "seeds": _LISTED["seeds"], "stage": STAGE}
_CLASSES = {
    "text": Text,
    "marked": Marked,
    "model": EncoderConfig,
    "recipe": Recipe,
    "timing": Timing,
    "row": Row,
    "claim": Claim,
}
# Fields that a file does not set: seeds stand in [seeds], a folder is an option, sizes follow.
_HIDDEN = {
    "text": {"seed", "folder"},
    "marked": {"seed"},
    "model": {"vocabulary", "length", "classes", "model_type"},
    "recipe": {"name", "objective"},
}


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    return {
        "commands.md": _commands(),
        "experiment-files.md": _experiment_files(),
        "extras.md": _extras(),
        "http.md": _http(),
    }


def _commands() -> str:
    """One section per command: what it does, how it is called, every option."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    sections = [STARTS["commands"]]
    for name, command in commands.items():
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        options = [one for one in command.params if one.param_type_name == "option"]
        called = " ".join(["apportion", name, *(_argument(one) for one in arguments), "[OPTIONS]"])
        rows = [[f"`{_argument(one)}`", _plain(one.help)] for one in arguments]
        rows += [[_option(one), _option_help(one)] for one in options if one.name != "help"]
        sections += [
            f"## {name}",
            _plain(inspect.cleandoc(command.help or "")),
            f"```sh\n{called}\n```",
            _table(("option" if not arguments else "argument or option", "means"), rows),
        ]
        if command.epilog:
            sections.append(_plain(command.epilog))
    return "\n\n".join(sections) + "\n"


def _argument(one: Any) -> str:
    name = (one.metavar or one.name).upper()
    return f"{name}{'…' if one.nargs == -1 else ''}"


def _option(one: Any) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(one.opts, key=len, reverse=True))
    off = f" / `{one.secondary_opts[0]}`" if one.secondary_opts else ""
    return names + off


def _option_help(one: Any) -> str:
    words = [_plain(one.help)]
    annotation = one.type_descriptor.annotation
    choices = get_args(annotation) if get_origin(annotation) is Literal else annotation
    if isinstance(choices, tuple) or (isinstance(choices, type) and issubclass(choices, Enum)):
        known = [str(getattr(choice, "value", choice)) for choice in choices]
        words.append(f"One of {', '.join(f'`{choice}`' for choice in known)}.")
    default = one.default
    if one.required:
        words.append("Required.")
    elif default is not None and not callable(default) and default not in ((), [], False, True, ""):
        words.append(f"Default: `{getattr(default, 'value', default)}`.")
    return " ".join(word for word in words if word)


def _plain(text: str | None) -> str:
    """Help as Markdown: what is bold on a terminal is code here."""
    said = re.sub(r"\\\[default: ([^\]]*)\]", r"Default: \1.", text or "")
    lines = _MARKUP.sub("`", said).split("\n\n")
    return "\n\n".join(" ".join(line.split()) for line in lines)


def _experiment_files() -> str:
    """Every key of every table, with its type, its default and what it means."""
    sections = [STARTS["experiments"]]
    for name, (title, words) in SECTIONS.items():
        known = _VALUES[name].items() if name in _VALUES else ()
        rows = [[f"`{key}`", _type(hint), _meaning(name, key)] for key, hint in known]
        columns = ("key", "is", "means")
        if name in _CLASSES:
            rows, columns = list(_fields(name)), ("key", "is", "default", "means")
        sections += [f"## {title}", words, _table(columns, rows)]
    known_recipes = ", ".join(f"`{recipe}`" for recipe in RECIPES)
    sections.append(f"Recipes by name: {known_recipes}.")
    return "\n\n".join(sections) + "\n"


def _fields(name: str) -> Iterable[list[str]]:
    kind = _CLASSES[name]
    hints, comments = get_type_hints(kind), _comments(kind)
    for field in fields(kind):
        if field.name in _HIDDEN.get(name, ()):
            continue
        default = "–" if field.default is MISSING else f"`{_toml(field.default)}`"
        if field.default in (None, "", ()):
            default = ""
        meaning = MEANINGS.get((name, field.name)) or comments[field.name]
        yield [f"`{field.name}`", _type(hints[field.name]), default, meaning]


def _comments(kind: type) -> dict[str, str]:
    """What stands behind the fields of a dataclass in its source."""
    found = re.findall(r"^    (\w+): [^#\n]*#\s*(.*)$", inspect.getsource(kind), re.MULTILINE)
    return {name: words[0].upper() + words[1:].rstrip(",") + "." for name, words in found}


def _meaning(table: str, key: str) -> str:
    return MEANINGS[table, key]


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _type(hint: Any) -> str:
    """What TOML calls a type."""
    origin = get_origin(hint)
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in get_args(hint))
    if origin in (Union, UnionType):
        return " or ".join(_type(one) for one in get_args(hint) if one is not type(None))
    if origin in (tuple, list):
        return f"list of {_type(get_args(hint)[0])}s"
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "table"}
    return plain.get(origin or hint, "table")


def _http() -> str:
    """Routes, the fields of their bodies, and what may come back."""
    said = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))
    sections = [STARTS["http"]]
    for path, methods in said["paths"].items():
        for method, route in methods.items():
            sections += [f"## {method.upper()} {path}", route["summary"] + "."]
            content = route.get("requestBody", {}).get("content", {})
            for body in content.values():
                rows = list(_body(body["schema"], said))
                sections.append(_table(("field", "is", "default"), rows))
            rows = [[code, one["description"]] for code, one in route["responses"].items()]
            sections.append(_table(("status", ""), rows))
    return "\n\n".join(sections) + "\n"


def _body(schema: Mapping[str, Any], said: Mapping[str, Any]) -> Iterable[list[str]]:
    schema = _followed(schema, said)
    needed = schema.get("required", [])
    for name, one in schema.get("properties", {}).items():
        default = "required" if name in needed else _toml(one.get("default"))
        yield [f"`{name}`", _json_type(one, said), default]


def _followed(schema: Mapping[str, Any], said: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = said["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return found


def _json_type(schema: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [_json_type(one, said) for one in schema["anyOf"]]
        return " or ".join(kind for kind in kinds if kind != "null")
    kind = str(_followed(schema, said).get("type", "any"))
    return f"array of {_json_type(schema['items'], said)}" if schema.get("items") else kind


def _extras() -> str:
    """Each extra, when it is needed, and what it brings."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    rows = [["–", MEANINGS["extra", ""], _packages(project["project"]["dependencies"])]]
    rows += [
        [f"`{name}`", MEANINGS["extra", name], _packages(brought)]
        for name, brought in extras.items()
    ]
    table = _table(("extra", "for", "brings"), rows)
    return "\n\n".join([STARTS["extras"], table]) + "\n"


def _packages(requirements: Iterable[str]) -> str:
    return ", ".join(f"`{one.partition(';')[0].strip()}`" for one in requirements)


def _table(columns: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    if not cells:
        return ""
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
