"""Writes anew the lines of code that the docs point to: `python docs/code_links.py`.

A link such as [`gates.Gates.forward`](../src/apportion/gates.py#L1) names what it leads to; file
and line are found from the name.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "apportion"
_LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\(\.\./src/[^)]*\)")


def linked(text: str) -> str:
    """The text with every link to the code leading to where its name is defined."""
    return _LINK.sub(lambda match: f"[`{match['name']}`]({_place(match['name'])})", text)


def _place(name: str) -> str:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        file = SOURCE.joinpath(*parts[:split]).with_suffix(".py")
        if file.exists():
            line = _line(ast.parse(file.read_text(encoding="utf-8")), parts[split:])
            return f"../src/apportion/{file.relative_to(SOURCE).as_posix()}#L{line}"
    raise ValueError(f"there is no module of {name!r}")


def _line(tree: ast.AST, names: list[str]) -> int:
    if not names:
        return getattr(tree, "lineno", 1)
    for node in ast.iter_child_nodes(tree):
        if names[0] in _defines(node):
            return _line(node, names[1:])
    raise ValueError(f"{names[0]!r} is not defined there")


def _defines(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        return [ast.unparse(node.target)]
    return [ast.unparse(target) for target in getattr(node, "targets", [])]


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        if linked(before) != before:
            page.write_text(linked(before), encoding="utf-8")
