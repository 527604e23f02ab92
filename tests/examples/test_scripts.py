"""The examples that are commands do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pretrained import write_classifier
from small_export import LEVELS, write_export
from texts import CLUES, rows
from written_forecast import write_forecast

from apportion import load

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


def lines_of(name, *words) -> list[list[str]]:
    command = [sys.executable, str(EXAMPLES / name), *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return [line.split("\t") for line in ended.stdout.splitlines()]


def test_a_classifier_is_converted_and_asked_at_each_budget_of_its_range(tmp_path):
    folder = write_classifier(tmp_path / "model", list(CLUES))
    texts = [text for _, text in rows(60, seed=1)]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    words = (folder, tmp_path / "texts.txt", "--out", tmp_path / "out", "--length", "20")
    told = lines_of("convert_and_predict.py", *words)
    assert load(tmp_path / "out").elastic.form == "nested"
    assert told and len(told) % 3 == 0
    assert {label for _, label, _, _ in told} <= set(CLUES)
    assert [text for _, _, _, text in told[:3]] == texts[:3]


def test_a_longer_deadline_buys_a_larger_budget(tmp_path):
    folder = write_export(tmp_path)
    write_forecast(folder)
    words = ("goal match league", "--within-ms", "60000", "0.01")
    told = lines_of("serve_with_a_deadline.py", folder, *words)
    asked, labels, budgets, late = zip(*told, strict=True)
    assert asked == ("60000 ms", "0.01 ms") and set(labels) <= set(CLUES)
    assert budgets == (f"budget {LEVELS[-1]:g}", f"budget {LEVELS[0]:g}")
    assert late == ("in time", "late")
