"""certify and predict with a promise, as people type them."""

from __future__ import annotations

import csv
import json
from collections import defaultdict

import pytest
from cascades import write_folders
from commands import run
from texts import rows, write

TOPICS = ("news", "law", "other")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Folders of a model, and texts of which one in three speaks of two things at once."""
    home = tmp_path_factory.mktemp("certified")
    write_folders(home)
    lines = []
    for number, ((_, text), (_, other)) in enumerate(
        zip(rows(1500, 3), rows(1501, 9000)[1:], strict=True)
    ):
        text = f"{text} {other}" if number % 3 == 0 else text
        lines.append((TOPICS[number % 3], text))
    write(home / "texts.csv", lines, ("topic", "text"))
    write(home / "new.csv", lines[:400], ("topic", "text"))
    return home


def answers(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["checkpoint", "onnx"])
def test_a_certificate_is_made_and_used(home, capsys, kind):
    folder = home / kind
    promise = ("--disagree-at-most", "0.02", "--rows", "1200")
    code, out, said = run(
        capsys, "certify", str(folder), "--texts", str(home / "texts.csv"), *promise
    )
    assert code == 0, said
    assert "At most 2 % of the answers differ" in out and "rows/s" in out
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["rows"] == 800 and certificate["disagree_at_most"] == 0.02
    assert (folder / "certificate.svg").read_text().startswith("<svg")
    words = ("predict", str(folder), str(home / "new.csv"), "--out")
    asked = ("--certificate", str(folder / "certificate.json"))
    code, _, said = run(capsys, *words, str(home / "cascade.csv"), *asked, "--audit", "0.1")
    assert code == 0 and "no drift" in said and "% at 0.25" in said, said
    found = answers(home / "cascade.csv")
    assert [row["line"] for row in found] == [str(n + 2) for n in range(400)]
    by_budget = defaultdict(list)
    for row in found:
        by_budget[row["budget"]].append(row)
    assert len(by_budget) > 1
    for budget, own in by_budget.items():
        run(capsys, *words, str(home / "fixed.csv"), "--budget", budget)
        fixed = {row["line"]: row["label"] for row in answers(home / "fixed.csv")}
        assert all(fixed[row["line"]] == row["label"] for row in own)
    other = home / ("onnx" if kind == "checkpoint" else "checkpoint")
    code, _, said = run(capsys, "predict", str(other), str(home / "new.csv"), *asked)
    assert code == 2 and "certify this folder" in said


@pytest.mark.slow
def test_files_keep_what_the_command_states(home, tmp_path, capsys):
    """Each file is drawn from the same texts; the truth is the whole model's answers."""
    folder = str(home / "onnx")
    lines = [(row["topic"], row["text"]) for row in answers(home / "texts.csv")]
    broken = 0
    for seed in range(20):
        file, out = tmp_path / "file.csv", tmp_path / "labels.csv"
        write(file, lines[seed * 20 : seed * 20 + 1000], ("topic", "text"))
        promise = ("--disagree-at-most", "0.05", "--confidence", "0.9", "--seed", str(seed))
        words = ("predict", folder, str(file), "--out")
        code, _, said = run(capsys, *words, str(out), *promise)
        assert code == 0 and "answers" in said, said
        statement = json.loads((tmp_path / "labels.csv.statement.json").read_text())
        assert statement["certified"] and statement["at_most"] == 50
        assert statement["rows"] == 1000 and statement["seed"] == seed
        run(capsys, *words, str(tmp_path / "whole.csv"))
        truth = [row["label"] for row in answers(tmp_path / "whole.csv")]
        given = [row["label"] for row in answers(out)]
        broken += sum(map(str.__ne__, given, truth)) > statement["at_most"]
    assert broken <= 5  # of 20, at 90 % confidence: more is beyond 98 % of what that allows
    write(file, lines[:60], ("topic", "text"))
    code, _, said = run(capsys, *words, str(out), "--disagree-at-most", "0.01")
    assert code == 0 and "too small to certify" in said
    assert {row["budget"] for row in answers(out)} == {"1"}


@pytest.mark.slow
def test_tags_lead_to_budgets_certificates_and_other_folders(home, capsys):
    run(
        capsys,
        *("certify", str(home / "onnx"), "--texts", str(home / "texts.csv")),
        *("--disagree-at-most", "0.05", "--rows", "300", "--out", str(home / "c.json")),
    )
    (home / "routing.toml").write_text(
        'tag = "topic"\n[tags.news]\nbudget = 0.25\n[tags.law]\ncertificate = "c.json"\n'
        '[default]\nfolder = "checkpoint"\n'
    )
    words = ("predict", str(home / "onnx"), str(home / "new.csv"), "--out", str(home / "r.csv"))
    code, _, said = run(capsys, *words, "--routing", str(home / "routing.toml"))
    assert code == 0, said
    found = answers(home / "r.csv")
    assert len(found) == 400
    assert {row["budget"] for row in found[::3]} == {"0.25"}
    assert {row["budget"] for row in found[2::3]} == {"1"}
    (home / "routing.toml").write_text("[tags.news]\nbudget = 0.25\n")
    asked = ("--routing", str(home / "routing.toml"), "--tag", "topic")
    code, _, said = run(capsys, *words, *asked)
    assert code == 0 and "the tag 'law' has no route" in said
    (home / "bare.csv").write_text("news,a text without a header\n")
    bare = ("predict", str(home / "onnx"), str(home / "bare.csv"), "--out", str(home / "b.csv"))
    code, _, told = run(capsys, *bare, *asked)
    assert code == 2 and "there is no column 'topic'" in told and not (home / "b.csv").exists()
    assert len(answers(home / "r.csv")) == 134
    (home / "routing.toml").write_text("[tags.news]\nwithin_ms = 5.0\n")
    code, _, said = run(capsys, *words, *asked)
    assert code == 2 and "apportion calibrate" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("certify F --texts t.csv --disagree-at-most 0", "between 0 and 1, such as 0.01, not 0"),
        ("certify F --texts t.csv --confidence 1", "between 0 and 1, such as 0.95, not 1"),
        ("certify F --texts t.csv", "there is no folder F"),
        ("certify F --texts t.csv --figure f.pdf", "a figure is a file of .svg or .png"),
        ("predict F t.csv --certificate c.json", "there is no certificate c.json"),
        ("predict F t.csv --certificate c.json -b 0.5", "leave --budget, --within-ms and"),
        ("predict F t.csv --certificate c.json --routing r.toml", "exclude each other"),
        ("predict F t.csv --disagree-at-most 2", "between 0 and 1, such as 0.01, not 2"),
        ("predict F --disagree-at-most 0.01", "which is read twice, and --out"),
        ("predict F t.csv --routing r.toml", "there is no routing file r.toml"),
        ("predict F t.csv --audit 0.1", "--audit needs --certificate"),
        ("predict F t.csv --routing r.toml --audit 0.1", "--audit needs --certificate"),
        ("certify F --texts t.csv --rows -5", "--rows and --batch are 1 at least, not -5 and 32"),
        ("certify F --texts t.csv --batch 0", "--rows and --batch are 1 at least"),
        ("certify F --texts t.csv --out c.svg", "c.svg is a --figure by its name"),
        ("certify F --texts t.parquet", "not Parquet"),
        ("predict F t.csv --certificate c.json --batch 0", "--batch is 1 at least, not 0"),
        ("predict F t.parquet", "Parquet is read by --engine ray"),
        ("predict F t.csv --confidence 0.9", "--confidence is of a promise: it needs --disagree"),
        ("predict F t.csv --seed 3", "--seed is of the rows that --disagree-at-most draws"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("text\na text\n")
    code, out, told = run(capsys, *words.split())
    assert (code, out) == (2, "") and said in told
    assert told.count("\n") == 1 and [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.slow
def test_too_few_texts_and_labels_are_refused_by_the_command(home, capsys, tmp_path):
    write(tmp_path / "few.csv", [("a", f"a text {n}") for n in range(100)])
    words = ("certify", str(home / "onnx"), "--texts", str(tmp_path / "few.csv"))
    code, _, said = run(capsys, *words)
    assert code == 2 and "at least 448 are needed" in said
    code, _, said = run(capsys, *words, "--text", "label", "--out", str(tmp_path / "c.json"))
    assert code == 2 and "can't certify" in said
    write(tmp_path / "few.csv", [("sport", f"a text {n}") for n in range(100)])
    code, _, said = run(capsys, *words, "--text", "label", "--out", str(tmp_path / "c.json"))
    assert code == 2 and "the texts are labels, such as 'sport'" in said
    assert not (tmp_path / "c.json").exists()
