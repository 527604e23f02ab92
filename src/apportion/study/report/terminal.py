"""Tables on a terminal, or JSON for programs: both to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from apportion.study.report.table import Table


def show(tables: Sequence[Table], as_json: bool = False) -> None:
    """Prints tables for people or, as JSON, for programs."""
    if as_json:
        print_json(
            {t.name: [dict(zip(t.columns, row, strict=True)) for row in t.rows] for t in tables}
        )
        return
    # A pipe has no width: wide enough that no cell is broken.
    console = Console(width=None if sys.stdout.isatty() else 240)
    for table in tables:
        shown = RichTable(title=table.title, title_justify="left", title_style="bold")
        for number, column in enumerate(table.columns):
            shown.add_column(column, justify="left" if number == 0 else "right")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
        if table.note:
            console.print(table.note, style="dim", highlight=False)


def print_json(value: Any) -> None:
    """Prints one JSON value."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
