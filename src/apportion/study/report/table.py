"""What a table is, and how GitHub shows it."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.elastic.card import markdown_table


@dataclass(frozen=True)
class Table:
    """A table for people: cells are text, and a note says what they have to know to read it."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """The table as GitHub shows it."""
        return markdown_table(self.columns, self.rows) + (f"\n\n{self.note}" if self.note else "")
