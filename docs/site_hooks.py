"""What the site needs beyond Markdown: links to files outside of docs/ lead to copies of them.

On GitHub, `../src/apportion/files.py#L12` opens the file. In the site it opens a page with the
file's text, at that line.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
_LINK = re.compile(r"\]\(\.\./(?P<path>[\w./-]+?)(?:#L(?P<line>\d+))?\)")
_FENCE = "`" * 4
_LANGUAGES = {".py": "py", ".toml": "toml", ".yaml": "yaml", ".js": "js", ".html": "html"}


def on_files(files: Any, *, config: Any) -> Any:
    """Adds a page for every file that some page links to."""
    from mkdocs.structure.files import File

    linked = set()
    for page in sorted(Path(config.docs_dir).glob("*.md")):
        linked |= {match["path"] for match in _LINK.finditer(page.read_text(encoding="utf-8"))}
    for path in sorted(linked):
        text = _page_of(path)
        files.append(File.generated(config, f"code/{path}.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turns links to such files into links to their pages."""
    up = posixpath.relpath(".", posixpath.dirname(page.file.src_uri) or ".")

    def replaced(match: re.Match[str]) -> str:
        path, line = match["path"], match["line"]
        at = f"#line-0-{line}" if line else ""
        return f"]({posixpath.normpath(f'{up}/code/{path}.md')}{at})"

    return markdown if page.file.src_uri.startswith("code/") else _LINK.sub(replaced, markdown)


def _page_of(path: str) -> str:
    """A page with a file's text, or with the names of what a folder holds."""
    place = HOME / path
    title = f"---\nsearch:\n  exclude: true\n---\n# `{path}`\n\n"
    if place.is_dir():
        return title + "".join(f"- `{one.name}`\n" for one in sorted(place.iterdir()))
    if place.suffix == ".md":
        return title + place.read_text(encoding="utf-8")
    language = _LANGUAGES.get(place.suffix, "text")
    return (
        f'{title}{_FENCE}{language} linenums="1"\n{place.read_text(encoding="utf-8")}\n{_FENCE}\n'
    )
