"""The experiments that commands write: the stages that they always had, from tables."""

from __future__ import annotations

import pytest
from commands import run
from texts import folder, rows, write

from apportion.data.sources import read_source
from apportion.data.text import Text
from apportion.study import records
from apportion.study.experiment import parse_experiment
from apportion.study.presets import Preset, _at_most

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
        "repaired": "5835f1a6d2bd",
        "nested": "1f1cde77e014",
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
        "repaired": "ff1920a1b40f",
        "nested": "30f67722cb20",
    },
    "train --data TEXTS --model minilm --units heads": {
        "dense": "629bffa1feb2",
        "gradient": "3669f4ff4b57",
        "budgeted": "f2b8cc2bd15b",
        "adapted": "6ceb022c7c50",
    },
    "train --data TEXTS --model minilm --units all --epochs 1": {
        "dense": "ce8084bf8f01",
        "repaired": "4230242d9cf5",
        "nested": "1f9107f60da2",
    },
    "convert minilm --data TEXTS": {
        "dense": "8d44df580cf0",
        "converted": "a7c4a91c2fd6",
    },
    "convert minilm --data TEXTS --tune 0": {
        "dense": "8d44df580cf0",
        "converted": "1ad703fc8996",
    },
    "convert minilm --data TEXTS --units heads --rows 40 --held-out 8 --length 20 --data-seed 4 "
    "--tune 0": {
        "dense": "b9a2445729ec",
        "converted": "5948744eb157",
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
    assert lines[repaired - 2].startswith("# Heads and feed-forward blocks in one order")
    assert lines[nested - 1].endswith("(experiments/nested-ag-news.toml).")


def test_a_folder_may_have_any_name(preset_of):
    preset = preset_of("convert minilm --data TEXTS", home='new "texts" # of ü\\2')
    plan = parse_experiment(preset.to_toml())
    assert plan.title == 'new "texts" # of ü\\2' and plan == preset.experiment()


ALL = "train --data TEXTS --units all --rows 60 --held-out 9"
TAKEN = ("unlabelled", "unlabelled_from", "unlabelled_digest")


def taken(preset: Preset) -> list[object]:
    return [preset.tables["task"].get(name) for name in TAKEN]


def test_a_folder_with_texts_without_labels_gives_them_to_all_units(preset_of, tmp_path):
    keys = {stage.key for stage in preset_of(ALL).experiment().stages}
    write(tmp_path / "texts" / "unlabelled.csv", [(text,) for _, text in rows(20, 9000)], ("text",))
    preset = preset_of(ALL)
    most, source, digest = taken(preset)
    assert (most, source) == (8000, "file") and len(digest) == 16
    plan = preset.experiment()
    assert plan.task.build().facts["unlabelled"]["rows"] == 20
    assert parse_experiment(preset.to_toml()) == plan
    assert "unlabelled = 8000 # rows at most; their labels are not read" in preset.to_toml()
    assert not keys & {stage.key for stage in plan.stages}
    assert taken(preset_of(f"{ALL} --unlabelled-rows 7"))[0] == 7
    for without in (f"{ALL} --unlabelled-rows 0", "train --data TEXTS"):
        assert taken(preset_of(without)) == [None] * 3
    assert {s.key for s in preset_of(f"{ALL} --unlabelled-rows 0").experiment().stages} == keys


def test_texts_without_labels_may_be_a_file_or_the_rows_that_are_left(preset_of, tmp_path):
    (tmp_path / "more.txt").write_text("one\ntwo\n")
    preset = preset_of(f"{ALL} --unlabelled {tmp_path / 'more.txt'}")
    assert taken(preset)[:2] == [8000, str(tmp_path / "more.txt")]
    assert sorted(preset.experiment().task.build().unlabelled.texts) == ["one", "two"]
    preset = preset_of(f"{ALL} --unlabelled train")
    assert taken(preset) == [8000, "train", None]  # the digest of all rows says what they are
    assert len(preset.experiment().task.build().unlabelled) == 120 - 60 - 9


WRONG_TEXTS = {
    "--unlabelled HOME/none.csv": "there is no file HOME/none.csv of unlabelled texts",
    "--unlabelled HOME": "HOME is a folder; give a file of unlabelled texts",
    "--unlabelled HOME/column.csv": "column.csv, line 1: there is no column 'text'",
    "--unlabelled HOME/empty.csv": "empty.csv is empty",
    "--unlabelled HOME/blank.txt": "blank.txt has no rows",
    "--unlabelled HOME/latin.txt": "latin.txt, line 2: not UTF-8",
    "--unlabelled HOME/texts/test.csv": "test.csv: no text is left",
    "--unlabelled train": "train.csv: all rows are drawn",
    "--unlabelled-rows 5": "has no unlabelled.csv to take 5 texts from",
    "--unlabelled HOME/fine.txt --unlabelled-rows 1": "at least 2 rows, not 1",
    "--unlabelled HOME/fine.txt --units heads": "--unlabelled needs --units all",
    "--unlabelled=": "--unlabelled is empty",
}


@pytest.mark.parametrize("wrong", WRONG_TEXTS)
def test_bad_texts_without_labels_are_one_sentence_before_any_training(capsys, tmp_path, wrong):
    folder(tmp_path / "texts")
    (tmp_path / "column.csv").write_text("body\nhello\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    (tmp_path / "fine.txt").write_text("one\ntwo\n")
    words = f"train --data HOME/texts --units all --out HOME/made {wrong}".split()
    code, out, err = run(capsys, *(word.replace("HOME", str(tmp_path)) for word in words))
    assert (code, out) == (2, "") and not (tmp_path / "made").exists()
    assert WRONG_TEXTS[wrong].replace("HOME", str(tmp_path)) in err
    assert len(err.strip().splitlines()) == 1


def test_texts_without_labels_need_a_task(capsys, tmp_path):
    code, _, err = run(capsys, "train", "--units", "all", "--unlabelled", "x.txt")
    assert code == 2 and "say where that is with --data" in err


def test_what_was_taken_is_said_before_training_and_in_the_card(capsys, tmp_path):
    home, made = folder(tmp_path / "texts"), tmp_path / "made"
    free = rows(20, 9000)
    write(home / "unlabelled.csv", [*free, free[3], rows(30, 5000)[0]])
    sizes = "--layers 1 --heads 2 --hidden 8 --feedforward 8 --epochs 1 --budgeted-epochs 1"
    words = f"train --data {home} --units all --length 8 --rows 30 {sizes} --out {made}"
    code, _, err = run(capsys, *words.split())
    assert code == 0, err
    says = (
        "texts without labels: 20 of unlabelled.csv; it has labels, which are not read; "
        "left out: 1 in validation or test, 1 copies of others"
    )
    assert " ".join(err.split()).count(says) == 1
    (card,) = (made / "checkpoint").rglob("README.md")
    assert says in card.read_text()
    _, out, _ = run(capsys, "inspect", str(made / "checkpoint"))
    assert says in out
    code, _, err = run(capsys, "sweep", str(made / "checkpoint"), "-b", "0.5")
    assert code == 0, err
    (stage, *_) = [r for r in records.read(made / "results" / "experiment.jsonl") if "facts" in r]
    assert stage["facts"]["unlabelled"]["rows"] == 20


@pytest.mark.parametrize("wrong", ["--length 0", "--epochs 0", "--rows 0", "--held-out 0"])
def test_a_number_that_is_given_is_never_taken_for_none(capsys, tmp_path, wrong):
    code, _, err = run(capsys, "train", *wrong.split(), "--out", str(tmp_path / "made"))
    assert code == 2 and "not 0" in err and not (tmp_path / "made").exists()


def test_test_rows_that_are_not_measured_on_vouch_for_a_conversion(tmp_path):
    """The model may know training rows by heart."""
    home = folder(tmp_path / "texts", train=120, test=700)
    source = read_source(str(home), ("text",), "label")
    spec = _at_most(Text(str(home)), source, rows=100, held_out=150)
    assert spec == Text(str(home), train=100, validation=300, test=150, validation_from="test")
    few = _at_most(Text(str(home)), source, rows=100, held_out=500)
    assert few.validation_from is None and few.validation == 40, "a third of the training rows"
    write(home / "val.csv", rows(30, 9000))
    source = read_source(str(home), ("text",), "label")
    assert _at_most(Text(str(home)), source, rows=100, held_out=150).validation_from is None
