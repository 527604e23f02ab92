"""The experiments that commands write: the stages that they always had, from tables."""

from __future__ import annotations

import pytest
from commands import run
from texts import folder

from apportion.study.experiment import parse_experiment
from apportion.study.presets import Preset

SIZES = (
    "--length 12 --rows 64 --held-out 20 --layers 3 --heads 4 --hidden 16 --feedforward 96 "
    "--epochs 2 --budgeted-epochs 1 --lam 0.1 --beta 3 --seed 3 --data-seed 5"
)
# A command, and the keys of its stages as they were when templates wrote its file.
KEYS = {
    "train": {
        "dense": "b2915eb6a295",
        "budgeted": "59227ec98030",
        "adapted": "3e2fb17b6acb",
    },
    "train --units all": {
        "dense": "b2915eb6a295",
        "repaired": "333ed220d34d",
        "nested": "4e9050ac53ad",
    },
    f"train {SIZES}": {
        "dense": "d20692d45f6c",
        "budgeted": "b0f99c4619f3",
        "adapted": "2780053c2f05",
    },
    "train --data TEXTS": {
        "dense": "43c0d3abfb05",
        "budgeted": "1390ec23f265",
        "adapted": "f478e6e259d0",
    },
    "train --data TEXTS --units all --length 20 --rows 50 --held-out 9": {
        "dense": "bd872ad5e322",
        "repaired": "9f7b86bece88",
        "nested": "edc081d03838",
    },
    "train --data TEXTS --model minilm": {
        "dense": "267b899d0edb",
        "gradient": "50a977ed1e26",
        "budgeted": "05b227d3ae71",
        "adapted": "ac09773f8e69",
    },
    "train --data TEXTS --model minilm --units all --epochs 1": {
        "dense": "f311c14b99f0",
        "repaired": "ff10b080e025",
        "nested": "543dc8d77596",
    },
    "convert minilm --data TEXTS": {
        "dense": "b47473cddbcc",
        "converted": "7cd562db896a",
    },
    "convert minilm --data TEXTS --units heads --rows 40 --held-out 8 --length 20 --data-seed 4": {
        "dense": "b9a2445729ec",
        "converted": "12fbf7260fa6",
    },
}
# What is measured on them: by all at the sweep's budgets, or by those that do without it.
MEASURES = {
    "heads": {"cfefaa1181f9", "7180dee9cff3"},
    "all": {"e706f5da4dce", "9d1ca8e936ce"},
    "convert": {"1c0f418abbcb"},
}


@pytest.fixture
def preset_of(capsys, tmp_path, monkeypatch):
    """What a command would run, with a model that is named and not loaded."""
    presets: list[Preset] = []
    monkeypatch.setattr("apportion.cli.running.make", lambda preset, *_: presets.append(preset))
    monkeypatch.setattr(
        "apportion.study.presets.model_table",
        lambda name, *_, **__: {"pretrained": name, "digest": "0123456789abcdef"},
    )

    def preset_of(command: str, home: str = "texts") -> Preset:
        texts = str(folder(tmp_path / home))
        words = [texts if word == "TEXTS" else word for word in command.split()]
        code, _, err = run(capsys, *words)
        assert code == 0, err
        return presets.pop()

    return preset_of


@pytest.mark.parametrize("command", KEYS)
def test_a_command_asks_for_the_stages_that_it_always_did(preset_of, command):
    plan = preset_of(command).experiment()
    assert {stage.method: stage.key for stage in plan.stages} == KEYS[command]
    verb = "convert" if command.startswith("convert") else plan.stages[-1].kinds[1:] and "all"
    assert {stage.measures for stage in plan.stages} <= MEASURES[verb or "heads"]


@pytest.mark.parametrize("command", KEYS)
def test_the_file_says_what_the_command_runs(preset_of, command):
    preset = preset_of(command)
    assert parse_experiment(preset.to_toml()) == preset.experiment()


def test_the_file_says_who_wrote_it_and_why_its_stages_are_as_they_are(preset_of):
    lines = preset_of("train --data TEXTS --model minilm --units all").to_toml().splitlines()
    assert lines[0] == "# Written by `apportion train --model`; `apportion run` takes it too."
    (digest,) = [line for line in lines if "of its rows" in line]
    assert digest.startswith('digest = "') and digest.endswith(
        "# of its rows: other rows are not taken"
    )
    repaired, nested = (lines.index(f'method = "{name}"') for name in ("repaired", "nested"))
    assert lines[repaired - 1].startswith("# Heads and feed-forward blocks in one order")
    assert lines[nested - 1].endswith("(experiments/elastic-ag-news.toml).")


def test_a_folder_may_have_any_name(preset_of):
    preset = preset_of("convert minilm --data TEXTS", home='new "texts" # of ü\\2')
    plan = parse_experiment(preset.to_toml())
    assert plan.title == 'new "texts" # of ü\\2' and plan == preset.experiment()


@pytest.mark.parametrize("wrong", ["--length 0", "--epochs 0", "--rows 0", "--held-out 0"])
def test_a_number_that_is_given_is_never_taken_for_none(capsys, tmp_path, wrong):
    code, _, err = run(capsys, "train", *wrong.split(), "--out", str(tmp_path / "made"))
    assert code == 2 and "not 0" in err and not (tmp_path / "made").exists()
