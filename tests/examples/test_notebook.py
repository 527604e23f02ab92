"""The notebook runs, and says what it is saved with."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "knob.ipynb"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# Percent, at most: another processor adds in another order, and training follows.
APART = 5.0


def printed(cells) -> list[str]:
    """What each cell of code prints to stdout."""
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    streams = [[one for one in cell["outputs"] if one.get("name") == "stdout"] for cell in code]
    return ["".join("".join(one["text"]) for one in outputs) for outputs in streams]


def test_the_notebook_is_saved_with_its_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    *said, last = printed(cells)
    assert any(said) and last.strip().endswith("the same answers: True")
    kinds = [one["output_type"] for cell in cells for one in cell.get("outputs", [])]
    assert set(kinds) == {"stream"}, "no errors, no pictures"


@pytest.mark.slow
def test_the_notebook_says_again_what_it_is_saved_with(monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    import apportion

    source = str(Path(apportion.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    before = printed(notebook.cells)
    nbclient.NotebookClient(notebook, timeout=500, kernel_name="python3").execute()
    for was, now in zip(before, printed(notebook.cells), strict=True):
        assert NUMBER.sub("#", now) == NUMBER.sub("#", was)
        for old, new in zip(NUMBER.findall(was), NUMBER.findall(now), strict=True):
            old, new = (float(number.replace(",", "")) for number in (old, new))
            assert new == pytest.approx(old, rel=0.02, abs=APART), f"{was!r} became {now!r}"
