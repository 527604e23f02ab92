"""Tables inside Markdown files, written anew from the records.

<!-- table: core -->
…whatever stands here is replaced…
<!-- end of table -->
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from apportion.report.tables import Table

_PLACE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def fill(text: str, tables: Sequence[Table]) -> str:
    """The text with each marked place holding its table."""
    by_name = {table.name: table for table in tables}

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in by_name:
            raise ValueError(f"there is no table {name!r}; there are {', '.join(by_name)}")
        return f"{match[1]}{by_name[name].markdown()}\n{match[3]}"

    return _PLACE.sub(replace, text)
