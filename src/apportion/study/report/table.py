"""What a table is, and how GitHub shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
        # Tables of commands about exported folders are shown where there is no torch.
        from apportion.elastic.card import markdown_table

        return markdown_table(self.columns, self.rows) + (f"\n\n{self.note}" if self.note else "")

    @classmethod
    def of_rows(
        cls, name: str, title: str, *, rows: Sequence[Mapping[str, str]], note: str = ""
    ) -> Table:
        """A table of rows that name their columns; all of them name the same."""
        columns = tuple(rows[0]) if rows else ()
        return cls(name, title, columns, tuple(tuple(row.values()) for row in rows), note)
