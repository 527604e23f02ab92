"""The wheel, installed where nothing else is: what its metadata promises is enough."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from closures import HOME, PROJECT, closure
from small_export import write_export

import apportion

pytestmark = pytest.mark.slow

TEXTS = ["a goal late in the match", "shares fell as rates rose"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(HOME)]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    return write_export(tmp_path_factory.mktemp("model"))


def clean_environment(home: Path, wheel: Path, *extras: str) -> Path:
    """A virtual environment with the wheel and what its extras bring, and no way to more.

    The packages are those that run this test, linked; nothing is fetched.
    """
    venv.create(home, with_pip=False, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for found in closure(*extras).values():
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] != ".."}:
            place = Path(str(found.locate_file(top)))
            if place.exists() and not (packages / top).exists():
                (packages / top).symlink_to(place)
    python = home / "bin" / "python"
    pip = ["-m", "pip", "--python", str(python), "install", "--quiet"]
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    words = [sys.executable, *pip, "--no-deps", "--no-index", str(wheel)]
    subprocess.run(words, check=True, capture_output=True, env=quiet)
    return python


def ran(*words: str | Path) -> subprocess.CompletedProcess[str]:
    hidden = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([*map(str, words)], capture_output=True, text=True, env=hidden)


def test_the_wheel_says_what_the_project_says(wheel):
    with zipfile.ZipFile(wheel) as held:
        names = held.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(held.read(metadata).decode("utf-8"))
    assert said["Version"] == apportion.__version__ == "0.1.0"
    assert set(said.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert {"apportion/py.typed", "apportion/serving/server/page.html"} <= set(names)
    assert not [name for name in names if not name.startswith("apportion")]


def test_with_onnx_alone_an_exported_folder_answers(wheel, exported, tmp_path):
    python = clean_environment(tmp_path / "env", wheel, "onnx")
    script = (
        "import sys; from apportion import Runtime\n"
        f"runtime = Runtime({str(exported)!r})\n"
        f"print([name for name, _ in runtime.predict({TEXTS!r}, budget=0.25)])\n"
        "assert not {'torch', 'transformers', 'typer', 'scipy'} & set(sys.modules)"
    )
    ended = ran(python, "-c", script)
    labels = [name for name, _ in apportion.Runtime(exported).predict(TEXTS, budget=0.25)]
    assert (ended.stdout, ended.stderr) == (f"{labels}\n", "")
    assert "No module" in ran(python, "-c", "import torch").stderr
    ended = ran(python.with_name("apportion"), "--version")
    said = "apportion: typer is not installed: pip install 'apportion[cli]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", said)


def test_with_the_command_line_too_it_is_asked_from_the_shell(wheel, exported, tmp_path):
    python = clean_environment(tmp_path / "env", wheel, "onnx", "cli")
    command = python.with_name("apportion")
    assert ran(command, "--version").stdout == "0.1.0\n"
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    ended = ran(command, "predict", exported, texts, "--budget", "0.5")
    assert ended.returncode == 0 and len(ended.stdout.splitlines()) == 1 + len(TEXTS), ended.stderr
    assert ran(command, "inspect", exported, "--json").returncode == 0
    for words, extra in [
        (("convert", "minilm", "--texts", texts, "--out", tmp_path / "out"), "train"),
        (("serve", exported), "serve"),
        (("certify", exported, "--texts", texts), "certify"),
    ]:
        ended = ran(command, *words)
        assert ended.returncode == 2 and ended.stdout == ""
        assert ended.stderr.count("\n") == 1 and f"'apportion[{extra}]'" in ended.stderr
    assert not (tmp_path / "out").exists()
