"""A compute knob without training: `apportion convert`, and what `--units all` trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from commands import call, run
from pretrained import write_classifier
from studies import STUDY
from texts import CLUES, folder
from transformers import BertForSequenceClassification

from apportion.data.rows import open_text
from apportion.data.sources import read_source
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import load
from apportion.elastic.elastic import Elastic
from apportion.models.hub import load_model
from apportion.study.experiment import parse_experiment, read_experiment
from apportion.study.records import read
from apportion.training.course import steps

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    home = tmp_path_factory.mktemp("converted")
    model = write_classifier(home / "model", list(CLUES))
    data = folder(home / "texts")
    words = ["convert", str(model), "--data", str(data), "--length", "20"]
    made = call(*words, "--out", str(home / "made"), "--json")
    return home, words, json.loads(made.out)


def test_convert_leaves_a_table_a_checkpoint_and_a_report(converted):
    home, _, out = converted
    table = out["budgets"]
    assert [row["budget asked"] for row in table] == [
        "0.125",
        "0.25",
        "0.375",
        "0.50",
        "0.625",
        "0.75",
        "0.875",
    ]
    loaded = load(home / "made" / "checkpoint")
    assert isinstance(loaded.model, Elastic) and loaded.model.gates.order is not None
    assert loaded.model.kinds == ("heads", "feedforward")
    assert (home / "made" / "report.html").stat().st_size > 10_000
    have = read(home / "made" / "results" / "experiment.jsonl")
    (dense,) = [r for r in have if r["kind"] == "point" and r["form"] == "dense"]
    assert dense["rows"] == 30
    (took,) = [r for r in have if r["kind"] == "scores"]
    assert 0 < took["repair_rows"] <= took["rows"]  # as many as its few unknowns need
    assert took["repair_held_out"] > 0 and 0.0 <= took["repair_share"] <= 1.0
    (switching,) = [r for r in have if r["kind"] == "switching"]
    assert switching["extra_bytes"] == 0


def test_views_are_shown_beside_both_dense_models(converted, capsys):
    """The plain one, and one with the same fused sums; with intervals and both kinds of ratio."""
    home, _, out = converted
    row = next(row for row in out["budgets"] if row["budget asked"] == "0.25")
    have = read(home / "made" / "results" / "experiment.jsonl")
    timed = [r for r in have if r["kind"] == "latency" and r["protocol"] == "padded"]
    (view,) = [r for r in timed if r["form"] == "skip" and r["budget"] == 0.25]
    assert row["speed, views"] == f"{view['speedup']:.2f}x"
    assert row["95 % interval"] == f"{view['low']:.2f} – {view['high']:.2f}"
    assert row["of medians"] == f"{view['of_medians']:.2f}x"
    beside = view["over_fused"]
    shown = f"{beside['speedup']:.2f}x ({beside['low']:.2f} – {beside['high']:.2f})"
    assert row["views, over fused"] == shown
    code, out, _ = run(capsys, "report", str(home / "made"), "--json")
    protocol = json.loads(out)["protocol"]
    assert code == 0 and [r["evaluated"] for r in protocol][:2] == [
        "all open",
        "all open, sums fused",
    ]
    assert protocol[0]["method"] == protocol[1]["method"] == "dense"
    assert protocol[0]["accuracy"] == protocol[1]["accuracy"]


def test_converting_again_only_prints_the_table(converted, capsys):
    home, words, _ = converted
    results = home / "made" / "results" / "experiment.jsonl"
    before = results.read_bytes()
    code, _, err = run(capsys, *words, "--out", str(home / "made"))
    assert code == 0 and "started" not in err and results.read_bytes() == before


def test_predictions_take_a_converted_model(converted, capsys, tmp_path):
    home, *_ = converted
    texts = tmp_path / "texts.txt"
    texts.write_text("a new rocket in orbit\nthe bank said profit\n", encoding="utf-8")
    made = str(home / "made" / "checkpoint")
    code, out, _ = run(capsys, "predict", made, str(texts), "-b", "0.5")
    assert code == 0 and len(out.splitlines()) == 3


def test_inspect_counts_the_units_of_a_nested_model(converted, capsys):
    home, *_ = converted
    code, out, _ = run(capsys, "inspect", str(home / "made" / "checkpoint"), "-b", "1.0")
    assert code == 0
    assert "one order for all budgets" in out and "4 heads, 2 feedforward" in out


def test_a_model_that_was_not_trained_for_the_classes_is_refused(capsys, tmp_path):
    model = write_classifier(tmp_path / "model", ["yes", "no", "perhaps"])
    data = folder(tmp_path / "texts")
    words = ["convert", str(model), "--data", str(data), "--length", "20"]
    code, _, err = run(capsys, *words, "--out", str(tmp_path / "made"))
    assert code == 2
    assert "no head that was trained for the classes money, space, sport" in err
    assert "yes, no, perhaps" in err
    assert "id2label" in err and not (tmp_path / "made").exists()


def test_classes_that_nobody_named_go_by_their_number(tmp_path):
    model = write_classifier(tmp_path / "model", ["LABEL_0", "LABEL_1", "LABEL_2"])
    kept = load_model(str(model), ("0", "1", "2"), seed=0, trained=True)
    theirs = BertForSequenceClassification.from_pretrained(model)
    assert torch.equal(kept.classifier.weight, theirs.classifier.weight)
    drawn = load_model(str(model), ("0", "1", "2"), seed=0)  # a start, not a trained model
    assert not torch.equal(drawn.classifier.weight, theirs.classifier.weight)


def test_rows_that_the_model_may_have_seen_are_spoken_of(converted, capsys, tmp_path, monkeypatch):
    """Before anything is run."""
    home, words, _ = converted
    data = folder(tmp_path / "texts")
    (data / "test.csv").unlink()
    words = [str(data) if word == str(home / "texts") else word for word in words]

    def stop(*_, **__):
        raise ValueError("that will do")

    monkeypatch.setattr("apportion.cli.running.run_plan", stop)
    code, _, err = run(capsys, *words, "--out", str(tmp_path / "made"), "--units", "heads")
    words = " ".join(err.split())
    assert code == 2 and "no test rows" in words and words.endswith("that will do")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["marked", "text", "pretrained"])
def test_train_takes_all_units(capsys, tmp_path, kind):
    sizes = "--length 12 --epochs 1 --budgeted-epochs 1"
    # 96 neurons are no multiple of 64, the usual block.
    sizes += "" if kind == "pretrained" else " --hidden 16 --heads 4 --feedforward 96"
    texts = ["--data", str(folder(tmp_path / "texts"))] if kind != "marked" else ["--rows", "64"]
    if kind == "pretrained":
        texts += ["--model", str(write_classifier(tmp_path / "model", list(CLUES)))]
    into = ["--out", str(tmp_path / "made")]
    code, out, _ = run(capsys, "train", "--units", "all", *sizes.split(), *texts, *into, "--json")
    assert code == 0
    assert json.loads(out)["budgets"][0]["speed, views"].endswith("x")
    plan = read_experiment(tmp_path / "made" / "experiment.toml")
    assert [stage.method for stage in plan.stages] == ["dense", "repaired", "nested"]
    model = load(tmp_path / "made" / "checkpoint").model
    assert isinstance(model, Elastic) and model.kinds == ("heads", "feedforward")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--units", "rows"], "--units is one of heads, all"),
        (["train", "--units", "all", "--lam", "0.1"], "--lam and --beta weigh the cost of gates"),
        (
            ["convert", "model", "--data", "texts", "--units", "rows"],
            "--units is one of heads, all",
        ),
        (["convert", "model", "--data", "nowhere"], "nowhere"),
    ],
)
def test_units_that_there_are_not_are_refused(capsys, words, says, tmp_path):
    code, _, err = run(capsys, *words, "--out", str(tmp_path / "made"))
    assert code == 2 and says in err and not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('score = "uniform"\nnested = true|score = "uniform"\nrepair = true', "need nested"),
        ('recipe = "nested"|recipe = "nested"\nrepair = true', "nested and repair are of scores"),
        ('score = "uniform"|given = true', "a model as given"),
        ('recipe = "dense"|recipe = "dense"\nhidden = 1.0', "no teacher to learn that from"),
    ],
)
def test_stages_that_make_no_sense_are_refused(change, says):
    before, after = change.split("|")
    assert before in STUDY
    with pytest.raises(ValueError, match=says):
        parse_experiment(STUDY.replace(before, after))


def written_files(monkeypatch) -> list[str]:
    """The experiment files that commands write, in place of running them; no model is loaded."""
    written: list[str] = []
    monkeypatch.setattr(
        "apportion.cli.running.make", lambda preset, *_: written.append(preset.to_toml())
    )
    monkeypatch.setattr(
        "apportion.study.presets.model_table", lambda name, *_, **__: {"pretrained": name}
    )
    return written


def test_the_readmes_command_trains_by_the_recipe_of_the_study(capsys, tmp_path, monkeypatch):
    """Stage by stage and number by number: `train --model minilm` and its table.

    Few rows are gone through more often; with as many as the study has, so often as there.
    """
    study = read_experiment(EXPERIMENTS / "nested-ag-news.toml")
    written = written_files(monkeypatch)
    words = ["train", "--data", str(folder(tmp_path / "texts")), "--model", "minilm"]
    code, _, _ = run(capsys, *words)
    assert code == 0
    command = parse_experiment(*written)
    assert command.model == study.model and set(study.budgets) <= set(command.budgets)
    assert [stage.method for stage in command.stages] == ["dense", "repaired", "nested"]
    names = {"repaired": "converted"}
    often = dict(zip(("dense", "nested"), steps("pretrained", 2000, unlabelled=8000), strict=True))
    for stage in command.stages:
        theirs = study.stages_of(names.get(stage.method, stage.method))[0]
        if stage.recipe:
            changes = {
                name: often[stage.method][name]
                for name in ("epochs", "views")[: 2 if stage.teacher else 1]
            }
            assert stage.recipe.with_changes(**changes) == theirs.recipe
        for name in (
            "score",
            "baseline",
            "given",
            "only",
            "keep",
            "kinds",
            "nested",
            "search",
            "repair",
        ):
            assert getattr(stage, name) == getattr(theirs, name), (stage.method, name)
        for source in ("parent", "teacher"):
            mine, its = getattr(stage, source), getattr(theirs, source)
            assert (mine and names.get(mine.method, mine.method)) == (its and its.method)
        assert stage.task.length == theirs.task.length


@pytest.mark.parametrize(
    ("given", "epochs"), [([], (10, 20)), (["--epochs", "5", "--budgeted-epochs", "4"], (5, 4))]
)
def test_epochs_that_are_given_take_the_place_of_the_recipes(
    capsys, tmp_path, monkeypatch, given, epochs
):
    written = written_files(monkeypatch)
    words = ["train", "--data", str(folder(tmp_path / "texts")), "--model", "minilm"]
    for units in ("heads", "all"):
        assert run(capsys, *words, "--units", units, *given)[0] == 0
        plan = parse_experiment(written.pop())
        (nested,) = plan.stages_of("nested" if units == "all" else "budgeted")
        assert (plan.stages[0].recipe.epochs, nested.recipe.epochs) == epochs


def counted(monkeypatch) -> list[str]:
    """The files that are opened for their rows, as they are."""
    opened: list[str] = []

    def opening(path):
        opened.append(path.name)
        return open_text(path)

    monkeypatch.setattr("apportion.data.sources.open_text", opening)
    return opened


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "train --model", "convert"])
def test_a_command_reads_its_texts_once(capsys, tmp_path, monkeypatch, command):
    opened = counted(monkeypatch)
    model = str(write_classifier(tmp_path / "model", list(CLUES)))
    if command != "train":
        learning = "a vocabulary is learned, and the model brings its own"
        monkeypatch.setattr(Tokenizer, "learn", lambda *_, **__: pytest.fail(learning))
    words = {
        "train": ["train", "--heads", "4", "--hidden", "16"],
        "train --model": ["train", "--model", model],
        "convert": ["convert", model],
    }[command]
    epochs = ["--epochs", "1", "--budgeted-epochs", "1"] if words[0] == "train" else []
    texts = ["--data", str(folder(tmp_path / "texts")), "--length", "12"]
    texts += ["--rows", "24", "--held-out", "6"]
    code, _, err = run(capsys, *words, *texts, *epochs, "--out", str(tmp_path / "made"))
    assert code == 0, err
    assert sorted(opened) == sorted(set(opened)) == ["test.csv", "train.csv"]


def test_texts_that_changed_are_read_again(tmp_path, monkeypatch):
    opened = counted(monkeypatch)
    texts = folder(tmp_path / "texts")
    before = read_source(str(texts), ["text"], "label")
    assert read_source(str(texts), ["text"], "label") is before
    assert opened == ["train.csv", "test.csv"]
    with (texts / "train.csv").open("a", encoding="utf-8") as file:
        file.write("space,one more rocket\n")
    after = read_source(str(texts), ["text"], "label")
    assert len(after.train.rows) == len(before.train.rows) + 1
    assert opened == ["train.csv", "test.csv"] * 2
