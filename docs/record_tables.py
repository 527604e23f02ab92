"""Writes docs/records.md from the dataclasses of the records: `python docs/record_tables.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import apportion.study.certificate_records
import apportion.study.ray_records
import apportion.study.run_records
import apportion.study.serving_records
import apportion.study.word_records  # noqa: F401 - all of them make their kinds known
from apportion.study.peer_records import ComparedRecord
from apportion.study.records import KINDS, Line, Record, TracedRecord

_MAIN = "apportion.study.records"
PAGE = Path(__file__).parent / "records.md"
_START = (
    "# Records\n"
    "One JSON object per line, appended in one write when a stage is done. `make docs` writes this "
    "page from the dataclasses in [`study.records`](../src/apportion/study/records.py#L1) and "
    "[`study.peer_records`](../src/apportion/study/peer_records.py#L1); "
    "`records.read` returns the lines as they are, and `records.record_of` makes one a value of "
    "its kind.\n\n"
    "Where a point was measured twice, the tables show the newest. A field that is marked with `?` "
    "is missing where it has no meaning, and in records from before there was one.\n\n"
    "Where an experiment file says `answers = true`, what was said of each test row is kept beside "
    "the records, in `STUDY/STAGE.npz`: `labels` [rows]; `forms` and `budgets` [points]; "
    "`predicted`, `loss` and `confidence` [points, rows]; `rows`, the digest of the test rows, and "
    "`measures`, as in the `stage` record. "
    "[`study.answers`](../src/apportion/study/answers.py#L1) reads them. A stage whose answers are "
    "missing is measured again, not trained again. Only answers to the same rows are compared: "
    '`test_rows = "all"` measures every seed on the whole test file, and `test_rows` with a '
    "`test_seed` on rows that are drawn once. `ece` and `agreement` come from the answers.\n"
)
_JSON = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "list",
    dict: "object",
    type(None): "null",
}


def page() -> str:
    """The whole page."""
    # File by file: which one was imported first is chance. Inside a file, as they stand there.
    kinds = sorted(KINDS.values(), key=lambda kind: (kind.__module__ != _MAIN, kind.__module__))
    of_stages = [kind for kind in kinds if not issubclass(kind, ComparedRecord)]
    compared = [kind for kind in kinds if issubclass(kind, ComparedRecord)]
    sections = [
        _section("Every record of a stage", Record, fields(Record)),
        _section("Provenance", TracedRecord, _own(TracedRecord, Record)),
        *map(_section_of_kind, of_stages),
        _section("Every record of a comparison", ComparedRecord, fields(ComparedRecord)),
        *map(_section_of_kind, compared),
    ]
    return "\n".join([_START, *sections])


def _section_of_kind(kind: type[Line]) -> str:
    above = next(one for one in (ComparedRecord, TracedRecord, Record) if issubclass(kind, one))
    more = " With its provenance." if above is TracedRecord else ""
    return _section(f"`{kind.kind}`", kind, _own(kind, above), more)


def _own(kind: type[Line], above: type[Line]) -> list[Field[Any]]:
    known = {field.name for field in fields(above)}
    return [field for field in fields(kind) if field.name not in known]


def _section(title: str, kind: type[Line], shown: Sequence[Field[Any]], more: str = "") -> str:
    hints = get_type_hints(kind, include_extras=True)
    rows = []
    for field in shown:
        hint, meaning = get_args(hints[field.name])
        optional = "" if field.default is MISSING else " ?"
        rows.append(f"| `{field.name}`{optional} | {_type(hint)} | {meaning} |")
    table = ["| field | JSON | holds |", "|---|---|---|", *rows]
    return "\n".join([f"## {title}", f"{kind.__doc__}{more}", "", *table, ""])


def _type(hint: Any) -> str:
    """What JSON calls a type."""
    known = _JSON.get(get_origin(hint) or hint)
    return known or " or ".join(_type(one) for one in get_args(hint))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
