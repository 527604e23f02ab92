"""Records of certificates: of their kinds, made by the tools, and as the docs say."""

from __future__ import annotations

import shutil
from pathlib import Path

import certified
import drift_streams
import file_promises
import numpy as np
import pytest
import validity
from cascades import write_folders
from pools import Cached, pool
from texts import folder

from apportion.study import records
from apportion.study.certificate_records import DriftRecord

HOME = Path(__file__).parents[2]
FILES = sorted((HOME / "experiments" / "certificates").glob("*.jsonl"))
DRIFT = HOME / "experiments" / "certificates" / "drift.jsonl"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_record_is_a_value_of_its_kind(file):
    for line in records.read(file):
        assert records.record_of(line).to_dict() == line


def test_the_docs_say_what_the_streams_did():
    page = (HOME / "docs" / "guarantee.md").read_text(encoding="utf-8")
    calm, *drifting = (records.record_of(line) for line in records.read(DRIFT))
    assert isinstance(calm, DriftRecord) and calm.false_alarms <= calm.delta
    assert drift_streams.table(records.read(DRIFT)) in page, "put tools/drift_streams.py's table in"
    assert all(one.found > 0.99 and one.drifted >= 0.03 for one in drifting)


def test_streams_that_are_simulated_make_a_record():
    made = records.record_of(drift_streams.simulate(0.005, 200, 0.2, 300, streams=20))
    assert made.found == 1.0 and 0 < made.median <= made.p90 <= 300


def test_a_draw_is_certified_and_its_truth_counted(monkeypatch):
    runtime = Cached(pool(5000, 3))
    facts, others = certified.certify_draw(runtime.answers, runtime, draw=1, epsilon=0.02)
    assert facts["rows"] == 2000 and facts["test_rows"] == len(others) == 2000
    assert 0 < facts["test_disagreements"] <= 60 and facts["cost"] < 1.0
    assert sum(facts["ends"]) == pytest.approx(1.0, abs=1e-3)
    other, _ = certified.certify_draw(runtime.answers, runtime, draw=2, epsilon=0.02)
    assert other["disagreements"] != facts["disagreements"] or other["cost"] != facts["cost"]


def test_promises_are_checked_on_answers_and_a_check_can_fail(tmp_path, capsys, monkeypatch):
    (tmp_path / "certified").mkdir()
    answers = pool(8000, 3)
    np.savez(
        tmp_path / "certified" / "some-set-cascade-int8-abc.npz",
        labels=answers.labels,
        margins=answers.margins,
        costs=np.array([0.125, 0.25, 1.0]),
    )
    out = tmp_path / "made.jsonl"
    words = ["validity", str(tmp_path), "--epsilon", "0.02", "--draws", "40", "--out", str(out)]
    for _ in range(2):  # what has a record is left out
        monkeypatch.setattr("sys.argv", words)
        validity.main()
    (line,) = records.read(out)
    made = records.record_of(line)
    assert (made.data, made.method, made.run_by) == ("some-set", "cascade", "int8")
    assert made.broken <= 0.15 < made.broken_at_half and made.boldest > 0.02
    assert made.files_certified > 0.9 and made.files_broken <= 0.15


@pytest.mark.slow
def test_files_are_given_to_the_command_and_compared_with_the_whole_model(tmp_path, monkeypatch):
    folders = write_folders(tmp_path / "small")
    texts = folder(tmp_path / "data" / "some-set", train=60, test=900) / "test.csv"
    out = tmp_path / "made.jsonl"
    words = ["file_promises", str(folders["onnx"]), str(texts), "--files", "2", "--rows", "800"]
    monkeypatch.setattr("sys.argv", [*words, "--epsilon", "0.05", "--out", str(out)])
    asking = file_promises.predict

    def misremembered(folder, texts, out, *options):
        """The whole model's answers, a row too late."""
        found = asking(folder, texts, out, *options)
        return found if options else [*found[1:], found[0]]

    file_promises.main()
    monkeypatch.setattr(file_promises, "predict", misremembered)
    file_promises.main()
    made, wrong = map(records.record_of, records.read(out))
    assert wrong.kept == 0 and wrong.most > 0.3, "what is compared is row by row"
    assert (made.data, made.files, made.file_rows, made.certified) == ("some-set", 2, 800, 2)
    assert made.kept == 2 and made.most <= 0.05 and 0 < made.early <= 1


@pytest.mark.slow
def test_the_study_of_certified_speed_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    """On a small model and few rows; the numbers are none."""
    folders = write_folders(tmp_path / "small")
    made = tmp_path / "runs" / "checkpoints"
    made.mkdir(parents=True)
    for name in ("ag_news-nested", "ag_news-dense"):
        shutil.copytree(folders["checkpoint"], made / name)
    home = tmp_path / "data" / "ag_news"
    folder(home, train=60, test=900)
    sizes = {"MOST": 900, "TUNED": 150, "TESTED": 400, "TIMED": 64, "REPEATS": 5}
    for name, size in sizes.items():
        monkeypatch.setattr(certified, name, size)
    words = ["certified.py", str(home.parent), "--runs", str(tmp_path / "runs")]
    words += ["--out", str(tmp_path / "out"), "--runtimes", "torch", "int8", "--draws", "1"]
    monkeypatch.setattr("sys.argv", words)
    certified.main()
    lines = records.read(tmp_path / "out" / "certified.jsonl")
    assert len(lines) == 4
    for line in lines:
        made_of = records.record_of(line)
        assert made_of.data == "ag_news" and made_of.rows == 400 and made_of.test_rows == 350
        assert (made_of.precision == "int8") == ("over_eager" in line)
    told = capsys.readouterr()
    assert "ag_news-depth is not there: left out" in told.err and told.out.count("draw 1") == 4
    certified.main()
    assert records.read(tmp_path / "out" / "certified.jsonl") == lines
