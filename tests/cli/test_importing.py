"""Importing is cheap: help costs no torch, and what used to happen at import still happens."""

from __future__ import annotations

import subprocess
import sys

import pytest
from transformers import BertConfig, BertForSequenceClassification

import apportion

HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "scipy", "numpy", "datasets")
COMMANDS = (
    "train",
    "convert",
    "inspect",
    "sweep",
    "cut",
    "bench",
    "calibrate",
    "certify",
    "predict",
    "serve",
    "load",
    "run",
    "report",
    "reproduce",
)


def python(script: str, *words: str) -> str:
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_imports_nothing_heavy():
    """One command after the other, in a process that had nothing heavy before."""
    script = (
        "import sys\n"
        "from apportion.cli import main\n"
        "for words in sys.argv[1:]:\n"
        "    sys.argv = ['apportion', *words.split()]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as stop:\n"
        "        assert not stop.code, (words, stop.code)\n"
        f"    heavy = set({HEAVY!r}) & set(sys.modules)\n"
        "    assert not heavy, f'{words} imports {heavy}'\n"
    )
    python(script, "--version", "--help", *(f"{name} --help" for name in COMMANDS))


def test_importing_the_package_imports_nothing_heavy_until_a_name_is_used():
    script = (
        "import sys, apportion\n"
        f"assert not set({HEAVY!r}) & set(sys.modules)\n"
        "assert set(apportion.__all__) <= set(dir(apportion))\n"
        "from apportion import allocate\n"
        "assert apportion.allocate is allocate and 'torch' in sys.modules\n"
        "assert 'accelerate' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    python(script)


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'apportion' has no attribute 'prune'"):
        apportion.prune  # noqa: B018


def test_star_brings_every_public_name():
    names: dict[str, object] = {}
    exec("from apportion import *", names)
    assert set(apportion.__all__) <= set(names)


@pytest.fixture(scope="module")
def cut_folder(tmp_path_factory):
    """A cut model of Transformers, made by one deep import: nothing else of apportion is there."""
    home = tmp_path_factory.mktemp("cut")
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
    )
    BertForSequenceClassification(config).save_pretrained(home / "whole")
    script = (
        "import sys\n"
        "from apportion.elastic.elastic import Elastic\n"
        "from transformers import AutoModelForSequenceClassification as Auto\n"
        "whole = Auto.from_pretrained(sys.argv[1] + '/whole')\n"
        "Elastic(whole, length=8).cut(0.5).save_pretrained(sys.argv[1] + '/half')\n"
    )
    python(script, str(home))
    return home / "half"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["apportion", "transformers"])
def test_the_auto_classes_know_cut_models_whoever_is_imported_first(cut_folder, first):
    imports = ["import apportion", "from transformers import AutoModelForSequenceClassification"]
    script = "\n".join(
        [
            "import sys",
            *(imports if first == "apportion" else imports[::-1]),
            "model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])",
            "print(type(model).__name__)",
        ]
    )
    assert python(script, str(cut_folder)) == "CutBertForSequenceClassification\n"
