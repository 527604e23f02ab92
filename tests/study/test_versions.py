"""What a stage makes has a version: other arithmetic is another stage."""

from __future__ import annotations

import pytest
from commands import run

from apportion.study import records, stages
from apportion.study.completion import was_done
from apportion.study.experiment import parse_experiment
from apportion.study.production import produce
from apportion.study.stages import VERSIONS

FILE = """
name = "versions"
units = "all"
budgets = [0.5]
[task]
kind = "marked"
length = 12
values = 4
distractors = 2
train = 32
validation = 16
test = 16
[model]
layers = 1
heads = 2
hidden = 8
feedforward = 16
[seeds]
data = [1]
optimisation = [3]
[[stage]]
method = "dense"
recipe = "dense"
epochs = 1
[[stage]]
method = "order"
from = "dense"
score = "random"
nested = true
[[stage]]
method = "repaired"
from = "dense"
score = "random"
nested = true
repair = true
MADE_BY
[[stage]]
method = "nested"
from = "repaired"
recipe = "nested"
epochs = 1
"""


def keys(made_by=""):
    plan = parse_experiment(FILE.replace("MADE_BY", made_by))
    return {stage.method: stage.key for stage in plan.stages}


@pytest.mark.parametrize(
    ("producer", "changed"),
    [
        ("training", {"dense", "order", "repaired", "nested"}),  # all come from what was trained
        ("scoring", {"order", "repaired", "nested"}),
        ("repair", {"repaired", "nested"}),
    ],
)
def test_a_newer_version_changes_the_keys_of_what_it_makes_and_of_what_comes_from_that(
    monkeypatch, producer, changed
):
    before = keys()
    monkeypatch.setitem(VERSIONS, producer, VERSIONS[producer] + 1)
    after = keys()
    assert {method for method in before if before[method] != after[method]} == changed


def test_a_stage_may_be_kept_at_the_version_that_made_it(monkeypatch):
    first = keys("made_by = { repair = 1 }")
    assert first["repaired"] != keys()["repaired"] and first["order"] == keys()["order"]
    monkeypatch.setitem(VERSIONS, "repair", VERSIONS["repair"] + 1)
    assert keys("made_by = { repair = 1 }") == first
    monkeypatch.setitem(VERSIONS, "repair", 1)
    assert keys()["repaired"] == first["repaired"]  # version 1 stands in no key


@pytest.mark.parametrize("made_by", ["repair = 9", "repair = 0", "painting = 1"])
def test_a_version_that_never_was_is_refused(made_by):
    with pytest.raises(ValueError, match="made_by versions from 1 of scoring to 1, repair to 3"):
        keys(f"made_by = {{ {made_by} }}")


def test_a_command_says_what_is_due_again(monkeypatch, capsys, tmp_path):
    file = tmp_path / "versions.toml"
    file.write_text(FILE.replace("MADE_BY", ""))
    words = ["run", str(file), "--runs", str(tmp_path / "runs")]
    code, _, err = run(capsys, *words)
    assert code == 0 and "due again" not in err
    code, _, err = run(capsys, *words)
    assert code == 0 and "due again" not in err and "started" not in err
    monkeypatch.setitem(VERSIONS, "repair", VERSIONS["repair"] + 1)
    code, _, err = run(capsys, *words)
    assert code == 0 and "due again, by a newer version: nested, repaired" in " ".join(err.split())
    have = records.read(tmp_path / "results" / "versions.jsonl")
    made = [r["method"] for r in have if r["kind"] == "stage"]
    assert sorted(made) == ["dense", "nested", "nested", "order", "repaired", "repaired"]


def test_what_an_older_training_made_is_not_made_again(monkeypatch, tmp_path):
    monkeypatch.setitem(VERSIONS, "training", 2)
    plan = parse_experiment(
        FILE.replace('recipe = "dense"', 'recipe = "dense"\nmade_by = { training = 1 }').replace(
            "MADE_BY", ""
        )
    )
    with pytest.raises(ValueError, match="version 1 of training; this is version 2"):
        produce(plan.stages[0], tmp_path)


def test_a_stage_that_is_done_is_not_due_again():
    plan = parse_experiment(FILE.replace("MADE_BY", ""))
    (repaired,) = plan.stages_of("repaired")
    first = {"kind": "stage", "stage": repaired.as_made_by(1).key}
    assert was_done(repaired, [first])
    assert not was_done(repaired, [first, {"kind": "stage", "stage": repaired.key}])
    assert not was_done(repaired, [])
    assert stages.VERSIONS is VERSIONS
