"""The site: every page has its place, generated ones are what the code says, all of it builds."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from reference_pages import pages
from typer.main import get_command

import apportion
from apportion.cli import app

HOME = Path(__file__).parents[1]
DOCS = HOME / "docs"
GENERATED = pages()
CONFIG = (HOME / "mkdocs.yml").read_text(encoding="utf-8")


def pages_of(entry) -> list[str]:
    """The files that an entry of the navigation names, however deep."""
    if isinstance(entry, str):
        return [entry]
    inside = entry.values() if isinstance(entry, dict) else entry
    return [page for one in inside for page in pages_of(one)]


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_generated_pages_are_what_the_code_says(name):
    assert (DOCS / name).read_text(encoding="utf-8") == GENERATED[name], "run `make docs`"


def test_every_page_has_one_place_in_the_navigation():
    listed = pages_of(yaml.safe_load(CONFIG)["nav"])
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md"))


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: apportion\.(\w+)$", page, flags=re.MULTILINE)
    assert sorted(named) == sorted(apportion.__all__)


HAND_WRITTEN = [page for page in sorted(DOCS.glob("*.md")) if page.name not in GENERATED]


def blocks(page: Path, languages: str) -> str:
    """All code of a page in some languages."""
    text = page.read_text(encoding="utf-8")
    return "\n".join(re.findall(rf"```(?:{languages})\n(.*?)```", text, flags=re.DOTALL))


def test_the_pages_commands_take_the_options_that_they_are_given():
    commands, seen = get_command(app).commands, 0
    for page in HAND_WRITTEN:
        code = blocks(page, "sh|").replace("\\\n", " ")
        for line in code.splitlines():
            if re.match(r"apportion [a-z]+ ", line):
                _, name, *words = shlex.split(line, comments=True)
                commands[name].make_context(name, words)  # parses them, and runs nothing
                seen += 1
    assert seen > 30


def test_the_pages_code_uses_public_names_alone():
    for page in HAND_WRITTEN:
        code = blocks(page, "py|python")
        used = set(re.findall(r"\bapportion\.(\w+)\(", code))
        for line in re.findall(r"from apportion import (.+)", code):
            used |= set(line.split(", "))
        assert used <= set(apportion.__all__), page.name


@pytest.mark.slow
def test_the_site_builds_strictly_and_asks_nobody_for_anything(tmp_path):
    tmp_path = tmp_path.resolve()
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=HOME, env=quiet, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=[\"\']?https?://", text), page
    assert lost_anchors(tmp_path) == []


def lost_anchors(site: Path) -> list[str]:
    """Links inside the site to a place on a page that is not there."""
    texts = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    lost, seen = [], 0
    for page, text in texts.items():
        for target, place in re.findall(r'href="([^":]*)#([^"]+)"', text):
            goal = (page.parent / target).resolve() if target else page
            seen += "code/" in target
            if goal in ids and place not in ids[goal]:
                lost.append(f"{page.name} → {target}#{place}")
    assert seen > 40, "links to lines of code"
    return lost
