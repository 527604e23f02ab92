"""Extras: what each brings, and what is said where one is missing."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions

import pytest
from closures import HOME, PROJECT, closure

from apportion.extras import EXTRAS, install_command, require

SOURCE = HOME / "src" / "apportion"


def imported_packages() -> set[str]:
    """Every package that some module imports, other than Python's own and this one."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).split(".")[0])
    return found - set(sys.stdlib_module_names) - {"apportion", "tomli"}


@cache
def owners() -> dict[str, set[str]]:
    """Which distributions bring each package."""
    found = packages_distributions().items()
    return {package: {name.lower().replace("_", "-") for name in by} for package, by in found}


def names(*extras):
    return set(closure(*extras))


def test_every_package_that_is_imported_is_in_the_core_or_in_an_extra():
    core = {"numpy", "safetensors", "tokenizers"}
    assert imported_packages() - core <= set(EXTRAS)
    assert core <= set(closure()) and not set(closure()) & {"torch", "transformers", "typer"}


@pytest.mark.parametrize("package", sorted(EXTRAS))
def test_the_extra_that_is_named_brings_the_package(package):
    extra = EXTRAS[package]
    assert extra in PROJECT["optional-dependencies"]
    assert owners()[package] & names(extra)


def test_running_an_exported_folder_needs_neither_torch_nor_transformers():
    light = names("onnx", "cli", "serve", "certify", "device")
    assert not light & {"torch", "transformers", "accelerate", "datasets", "onnx"}


def test_all_is_all_that_users_need():
    for_developers = {"all", "dev", "peers", "site"}
    own = set(PROJECT["optional-dependencies"]) - for_developers
    assert names("all") == names(*own)


def test_a_missing_package_is_one_sentence_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(ValueError, match=r"^psutil is not installed: pip install 'apportion\[dev"):
        require("psutil")


def test_a_module_that_no_extra_brings_is_no_matter_of_extras():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        require("no_such_module")


SCRIPT = """
import sys

for name in {missing!r}:
    sys.modules[name] = None
{then}
"""


def without(missing, then):
    script = SCRIPT.format(missing=missing, then=then)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_without_the_command_line_the_command_is_one_sentence():
    ended = without(["typer"], "import apportion.cli")
    said = f"apportion: typer is not installed: {install_command('cli')}\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", said)


def test_a_command_says_what_it_lacks_in_one_line(tmp_path):
    words = ["apportion", "cut", str(tmp_path), "--budget", "0.5", "--out", str(tmp_path / "out")]
    ended = without(["torch"], f"sys.argv = {words!r}; from apportion.cli import main; main()")
    said = f"apportion: torch is not installed: {install_command('train')}\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", said)


def test_a_public_name_says_which_extra_it_needs():
    ended = without(["torch"], "from apportion import Runtime, convert")
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: torch is not installed: {install_command('train')}"
