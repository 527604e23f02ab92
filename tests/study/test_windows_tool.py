"""The tool that measures windows on long documents: its records, its table, and the docs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import windows
from small_export import write_export
from texts import rows, write

from apportion.serving.runtime.session import Runtime
from apportion.study import records

HOME = Path(__file__).parents[2]
WORDS = [word for _, text in rows(80, 4) for word in text.split()]


def document(number, length):
    start, step = number * 7, number % 5 + 1
    return " ".join(WORDS[(start + n * step) % len(WORDS)] for n in range(length))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("windows")
    write_export(home)
    (home / "films").mkdir()
    texts = [document(n, 60 + n % 50) for n in range(320)]
    write(home / "films" / "test.csv", [("a", text) for text in texts[:100]])
    short = [("a", document(n, 10)) for n in range(40)]
    write(home / "films" / "train.csv", [("b", text) for text in texts[100:]] + short)
    return home


def test_the_docs_say_what_the_records_do():
    page = (HOME / "docs" / "length.md").read_text(encoding="utf-8")
    assert windows.table(records.read(windows.OUT)) in page, "put tools/windows.py's table in"


def test_only_long_documents_are_taken_and_each_once(home):
    runtime = Runtime(home / "onnx")
    everything = windows.long_documents(home / "films", runtime, least=1)
    found = windows.long_documents(home / "films", runtime, least=60)
    assert len(set(found)) == len(found) and set(found) < set(everything)
    assert min(len(text.split()) for text in found) >= 50


def test_each_draw_is_measured_once_and_compared_with_all_windows(home, monkeypatch, capsys):
    out = home / "out.jsonl"
    typed = ["windows.py", str(home / "onnx"), str(home / "films"), "--least", "60"]
    monkeypatch.setattr(sys, "argv", [*typed, "--draws", "1", "--out", str(out)])
    windows.main()
    (line,) = records.read(out)
    made = records.record_of(line)
    assert made.data == "films" and made.window == 32 and made.disagree_at_most == 0.02
    assert made.test_rows + made.rows + made.tuned_rows == len(
        windows.long_documents(home / "films", Runtime(home / "onnx"), least=60)
    )
    assert 1.0 <= made.windows_read <= made.windows and made.windows > 2.0
    windows.main()
    assert records.read(out) == [line]
    assert capsys.readouterr().out.count("| films | 1 |") == 2


def test_the_table_joins_the_draws_of_the_same_weights():
    line = {"data": "films", "stage": "s", "runtime": "r", "precision": "int8", "budget": 1.0}
    line |= {"disagree_at_most": 0.02, "tuned_rows": 300, "rows": 600, "test_rows": 100}
    line |= {"windows": 4.0, "windows_read": 1.5, "test_disagreements": 1}
    other = {**line, "windows_read": 2.5, "test_disagreements": 2}
    assert windows.table([line, other, {**line, "stage": "t"}]).splitlines()[2:] == [
        "| films | 2 | 900 | 4.00 | 2.00 | 2.0x | ≤ 2 % | 1.5 % |",
        "| films | 1 | 900 | 4.00 | 1.50 | 2.7x | ≤ 2 % | 1.0 % |",
    ]
    assert windows.table([]) == windows.NONE
