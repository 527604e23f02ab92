"""The site: every page has its place, generated ones are what the code says, all of it builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from reference_pages import pages

import apportion

HOME = Path(__file__).parents[1]
DOCS = HOME / "docs"
CONFIG = (HOME / "mkdocs.yml").read_text(encoding="utf-8")


def pages_of(entry) -> list[str]:
    """The files that an entry of the navigation names, however deep."""
    if isinstance(entry, str):
        return [entry]
    inside = entry.values() if isinstance(entry, dict) else entry
    return [page for one in inside for page in pages_of(one)]


@pytest.mark.parametrize("name", sorted(pages()))
def test_generated_pages_are_what_the_code_says(name):
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "run `make docs`"


def test_every_page_has_one_place_in_the_navigation():
    listed = pages_of(yaml.safe_load(CONFIG)["nav"])
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md"))


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: apportion\.(\w+)$", page, flags=re.MULTILINE)
    assert sorted(named) == sorted(apportion.__all__)


@pytest.mark.slow
def test_the_site_builds_strictly_and_asks_nobody_for_anything(tmp_path):
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=HOME, env=quiet, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=[\"\']?https?://", text), page
    method = (tmp_path / "method.html").read_text(encoding="utf-8")
    page, line = re.search(r'"(code/src/[^"#]+gates\.py\.html)#(line-0-\d+)"', method).groups()
    assert f'id="{line}"' in (tmp_path / page).read_text(encoding="utf-8")
