"""Tables inside Markdown files, written anew from the records.

<!-- table: ag-news/core -->
…whatever stands here is replaced…
<!-- end of table -->
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from apportion.files import write_text
from apportion.study.report.table import Table

_PLACE = re.compile(
    r"(<!-- table: (?P<study>[\w-]+)/(?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL
)


def fill(text: str, study: str, tables: Sequence[Table]) -> str:
    """The text with each place that is marked for a study holding its table."""
    by_name = {table.name: table for table in tables}

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if match["study"] != study:
            return match[0]
        if name not in by_name:
            raise ValueError(f"{study} has no table {name!r}; it has {', '.join(by_name)}")
        return f"{match[1]}{by_name[name].markdown()}\n{match[4]}"

    return _PLACE.sub(replace, text)


def fill_files(paths: Sequence[Path], study: str, tables: Sequence[Table]) -> None:
    """Fills files in their place; none of them, if a table is missing."""
    filled = {path: fill(path.read_text(encoding="utf-8"), study, tables) for path in paths}
    for path, text in filled.items():
        write_text(path, text)
