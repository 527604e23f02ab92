from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from commands import TRAIN, call, run
from typer.main import get_command

from apportion import cli
from apportion.elastic.checkpoint import MANIFEST, Checkpoint, load, save
from apportion.elastic.elastic import Elastic
from apportion.elastic.evaluation import SWEEP
from apportion.files import holding
from apportion.study import records


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    home = tmp_path_factory.mktemp("trained")
    return home, call(*TRAIN.split(), "--out", str(home))


def test_train_leaves_a_table_a_checkpoint_and_a_report(trained):
    home, (_, out, err) = trained
    for column in ("budget asked", "cost paid", "accuracy", "speed"):
        assert column in out
    assert "report" in err
    assert load(home / "checkpoint").kind == "elastic"
    assert (home / "report.html").stat().st_size > 10_000


def test_training_again_only_prints_the_table(trained, capsys):
    home, _ = trained
    before = (home / "results" / "experiment.jsonl").read_bytes()
    code, out, err = run(capsys, *TRAIN.split(), "--out", str(home), "--json")
    assert code == 0
    assert "started" not in err
    assert [row["budget asked"] for row in json.loads(out)["budgets"]] == [
        "0.25",
        "0.50",
        "0.75",
        "1.00",
    ]
    assert (home / "results" / "experiment.jsonl").read_bytes() == before


def test_inspect_says_what_is_kept(trained, capsys):
    home, _ = trained
    code, out, _ = run(capsys, "inspect", str(home / "checkpoint"), "-b", "0.5", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["recipes"] == ["dense", "budgeted", "adapt"]
    assert sum(len(layer["heads"]) for layer in facts["budgets"][0]["kept"].values()) == 4
    _, text, _ = run(capsys, "inspect", str(home / "checkpoint"))
    assert "2 layers x 4 heads" in text


def test_sweep_prints_19_budgets_and_a_verdict(trained, capsys):
    home, _ = trained
    code, out, _ = run(capsys, "sweep", str(home / "checkpoint"), "--json")
    found = json.loads(out)
    assert code == 0
    for form in ("soft", "hard"):
        points = [point for point in found["points"] if point["form"] == form]
        assert [point["budget"] for point in points] == list(SWEEP)
        costs = [point["cost"] for point in points]
        assert costs == sorted(costs) and costs[0] < costs[-1]
    assert len(found["points"]) == 38
    assert found["monotone"] is True


@pytest.mark.parametrize(("monotone", "says"), [(True, "Cost is"), (False, "Cost is not")])
def test_sweep_says_whether_more_budget_ever_costs_less(
    trained, capsys, monkeypatch, monotone, says
):
    monkeypatch.setattr("apportion.elastic.evaluation.is_monotone", lambda points: monotone)
    words = ["sweep", str(trained[0] / "checkpoint"), "-b", "0.5", "--form", "cut"]
    code, text, _ = run(capsys, *words)
    assert code == 0 and f"{says} monotone in the budget." in " ".join(text.split())


def test_cut_writes_a_smaller_checkpoint(trained, capsys, tmp_path):
    home, _ = trained
    words = ["cut", str(home / "checkpoint"), "-b", "0.5", "--out", str(tmp_path / "half")]
    code, out, _ = run(capsys, *words, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["units"] == 4
    assert facts["parameters"] < facts["parameters_before"]
    assert load(tmp_path / "half").kind == "cut"
    _, text, _ = run(capsys, "inspect", str(tmp_path / "half"))
    assert "cut checkpoint" in text
    code, _, err = run(capsys, "sweep", str(tmp_path / "half"))
    assert code == 2
    assert "has no gates" in err


def test_bench_times_every_arm(trained, capsys):
    home, _ = trained
    words = ["bench", str(home / "checkpoint"), "-b", "0.5", "--repeats", "6", "--batch", "4"]
    code, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert [r["form"] for r in found] == ["dense", "soft", "hard", "skip", "cut"]
    _, text, _ = run(capsys, *words)
    assert "by MACs" in text


def test_report_prints_every_table(trained, capsys, tmp_path):
    home, _ = trained
    page = tmp_path / "page.html"
    code, out, _ = run(capsys, "report", str(home), "--out", str(page), "--json")
    assert code == 0
    assert {"budgets", "sweep", "latency", "accounting"} <= set(json.loads(out))
    assert page.exists()


def test_run_takes_the_file_that_train_wrote(trained, capsys):
    home, _ = trained
    file = home / "experiment.toml"
    code, out, _ = run(capsys, "run", str(file), "--runs", str(home / "stages"))
    assert code == 0
    assert "budget asked" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["inspect", "CHECKPOINT", "-b", "0"], "a fraction in (0, 1], not 0"),
        (["inspect", "CHECKPOINT", "-b", "1.5"], "a fraction in (0, 1], not 1.5"),
        (["inspect", "CHECKPOINT", "-b", "0.1", "--floor", "1"], "smallest feasible budget is"),
        (["cut", "CHECKPOINT", "-b", "2", "--out", "HOME/x"], "a fraction in (0, 1], not 2"),
        (["sweep", "CHECKPOINT", "--form", "gently"], "a form is one of soft, hard, cut"),
        (["sweep", "CHECKPOINT", "--split", "dev"], "a split is one of train, validation, test"),
        (["bench", "CHECKPOINT", "--threads", "0"], "threads must be at least 1"),
        (["bench", "CHECKPOINT", "--threads", "100000"], "threads must be at most"),
        (["train", "--data", ""], "--data is empty; is a variable of the shell not set?"),
        (["train", "--model="], "--model is empty"),
        (["train", "--out", "HOME/x", "--data", "HOME", "--text", ""], "--text is empty"),
        (["inspect", ""], "an argument is empty"),
        (["train", "--out", "HOME/x", "--rows", "0"], "train needs at least 2 rows, not 0"),
        (["train", "--out", "HOME/x", "--held-out", "0"], "validation needs at least 2 rows"),
        (["train", "--out", "HOME/x", "--data-seed", "-1"], "none below 0"),
        (["train", "--out", "HOME/x", "--lam", "nan"], "lam must be a finite number, not nan"),
        (["train", "--out", "HOME/x", "--beta", "inf"], "beta must be a finite number, not inf"),
        (["train", "--model", "minilm", "--data", "HOME", "--heads", "0"], "has its own layers"),
        (["bench", "CHECKPOINT", "--batch", "0"], "batch must be at least 1"),
        (["inspect", "HOME/nothing"], "is not a checkpoint"),
        (["cut", "CHECKPOINT", "-b", "0.5", "--out", "CHECKPOINT"], "is the checkpoint itself"),
        (["inspect", "CHECKPOINT", "--floor", "-1"], "a floor is 0 or more"),
        (["run", "HOME"], "directory"),
        (["bench", "CHECKPOINT", "--repeats", "3"], "at least 5 repeats"),
        (["run", "HOME/none.toml"], "there is no experiment file"),
        (["run", "STUDY", "--methods", "none"], "there is no method 'none'; there are"),
        (["run", "STUDY", "--parts", "times"], "of a comparison of runtimes, and"),
        (["train", "--text", "body"], "say where they are with --data"),
        (["train", "--model", "minilm"], "say where those are with --data"),
        (["train", "--model", "minilm", "--data", "HOME", "--heads", "2"], "has its own layers"),
        (["sweep", "CHECKPOINT", "--data", "HOME"], "draws its own rows; it takes no data"),
        (["report", "HOME/none.toml"], "there is no experiment file"),
        (["train", "--out", "HOME/y", "--heads", "3"], "hidden=64 is not a multiple of heads=3"),
        (["train", "--out", "HOME/y", "--epochs", "0"], "epochs must be at least 1"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(trained, capsys, tmp_path, words, says):
    home, _ = trained
    words = [
        w.replace("CHECKPOINT", str(home / "checkpoint"))
        .replace("STUDY", str(home / "experiment.toml"))
        .replace("HOME", str(tmp_path))
        for w in words
    ]
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert says in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def break_json(folder):
    (folder / MANIFEST).write_text('{"format":')


def change(**keys):
    def edit(folder):
        manifest = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps({**manifest, **keys}))

    return edit


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (truncate, "is truncated or was changed"),
        (break_json, "not readable as JSON"),
        (change(version=2), "format version 2; this apportion reads version 1"),
        (change(kind="sparse"), "unknown kind 'sparse'"),
        (change(kind="cut"), "damaged"),
        (change(files={}), "damaged"),
        (change(notes=None), "damaged"),
        (change(model={"type": "bert", "config": {}}), "unknown type 'bert'"),
    ],
)
def test_a_damaged_checkpoint_is_one_sentence_too(capsys, tmp_path, encoder, damage, says):
    save(Checkpoint(Elastic(encoder, length=12)), tmp_path / "model")
    damage(tmp_path / "model")
    code, out, err = run(capsys, "inspect", str(tmp_path / "model"))
    assert code == 2
    assert out == ""
    assert says in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("[task]", "[task]\nlenght = 3", "[task] has unknown keys lenght"),
        ('recipe = "dense"', 'recipe = "densely"', "unknown recipe 'densely'"),
        ("lam = ", "lamda = ", "stage 'budgeted' has unknown keys lamda"),
    ],
)
def test_a_mistake_in_an_experiment_file_is_one_sentence_too(
    trained, capsys, tmp_path, before, after, says
):
    """With the place that it is in, square brackets and all."""
    text = (trained[0] / "experiment.toml").read_text()
    assert before in text
    (tmp_path / "wrong.toml").write_text(text.replace(before, after, 1))
    code, _, err = run(capsys, "run", str(tmp_path / "wrong.toml"))
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_full_disk_is_one_sentence_and_exit_code_1(trained, capsys, tmp_path, monkeypatch):
    home, _ = trained

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    words = ["cut", str(home / "checkpoint"), "-b", "0.5", "--out", str(tmp_path / "half")]
    code, _, err = run(capsys, *words)
    assert code == 1
    assert "No space left on device" in err
    assert list(tmp_path.iterdir()) == []


def test_help_teaches_every_command(capsys):
    _, out, _ = run(capsys, "--help")
    commands = get_command(cli.app).commands
    assert {"train", "convert", "predict", "reproduce"} < set(commands)
    for name, command in commands.items():
        assert re.search(rf"^\W*{name} +\w", out, flags=re.MULTILINE), "and what it is for"
        code, text, _ = run(capsys, name, "--help")
        assert code == 0
        words = " ".join(text.split())
        for taken in command.params:
            assert (taken.opts[0] if taken.param_type_name == "option" else taken.name) in words
            assert taken.param_type_name != "option" or taken.help, f"{name} {taken.name}"


def test_results_hold_no_path_of_the_machine(trained):
    home, _ = trained
    text = (home / "results" / "experiment.jsonl").read_text()
    assert str(home.parent) not in text
    assert all(r["stage"] for r in records.read(home / "results" / "experiment.jsonl"))


def test_two_trainings_into_one_folder_are_one_and_a_sentence(trained, tmp_path, capsys):
    """The second is refused at once, whichever of its folders the first one holds."""
    home, _ = trained
    before = (home / "results" / "experiment.jsonl").read_bytes()
    stages, results = str(home / "stages"), home / "results" / "experiment.jsonl"
    words = [*TRAIN.split(), "--out", str(home)]
    for held in (home, home / "stages", results):
        with holding(held):
            code, out, err = run(capsys, *words)
            assert (code, out) == (1, "") and f"another process is writing {held}" in err
            assert len(err.strip().splitlines()) == 1
    with holding(results):
        code, _, err = run(capsys, "run", str(home / "experiment.toml"), "--runs", stages)
        assert code == 1 and "another process is writing" in err
    assert results.read_bytes() == before
    assert not [path for path in home.rglob(".*") if path.suffix in (".lock", ".part")]


def test_interrupted_imports_leave_no_traceback():
    script = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "apportion.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
import apportion.cli
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_records_that_are_none_are_passed_over(trained, capsys):
    home, _ = trained
    results = home / "results" / "experiment.jsonl"
    before = results.read_bytes()
    none = ('{"kind": "stage"}', '{"kind": "latency"}', "[" * 100_000)
    try:
        results.write_bytes("\n".join(none).encode() + b"\n" + before)
        code, out, _ = run(capsys, *TRAIN.split(), "--out", str(home))
        assert code == 0 and "budget asked" in out
    finally:
        results.write_bytes(before)


def test_records_in_another_encoding_are_named(trained, capsys):
    home, _ = trained
    results = home / "results" / "experiment.jsonl"
    before = results.read_bytes()
    try:
        results.write_bytes(b"\xff\n" + before)
        code, _, err = run(capsys, "report", str(home))
        assert code == 2 and "experiment.jsonl is not UTF-8" in err
    finally:
        results.write_bytes(before)
