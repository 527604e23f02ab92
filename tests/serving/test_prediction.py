from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call, run
from texts import CLUES, folder, rows, write
from witnesses import Clock

from apportion.data.rows import BadRow, Row
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import load, save
from apportion.elastic.evaluation import evaluate
from apportion.serving.bench.throughput import time_predictions
from apportion.serving.runtime import arrays
from apportion.serving.runtime.arrays import on_arrays
from apportion.serving.runtime.prediction import Prediction, lines_of, predict
from apportion.study.experiment import task_of

TRAIN = "--length 16 --layers 2 --hidden 16 --feedforward 32 --epochs 20 --budgeted-epochs 3"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    home = tmp_path_factory.mktemp("trained")
    data = folder(home / "data", train=240)
    words = ["train", "--data", str(data), *TRAIN.split(), "--out", str(home / "run")]
    return home, call(*words)


@pytest.fixture(scope="module")
def checkpoint(trained):
    return trained[0] / "run" / "checkpoint"


def test_train_on_a_folder_leaves_a_checkpoint_that_reads_texts(trained, checkpoint):
    home, made = trained
    assert "data: 216 train, 24 validation, 30 test rows of 3 classes" in made.err
    loaded = load(checkpoint)
    assert loaded.notes["classes"] == sorted(CLUES)
    assert loaded.words is not None
    assert (checkpoint / "tokenizer.json").exists()
    page = (home / "run" / "report.html").read_text(encoding="utf-8")
    for shown in ("The texts", "Predictions a second", "padded", "grouped"):
        assert shown in page


def test_the_encoder_learns_the_texts(checkpoint):
    loaded = load(checkpoint)
    task = task_of(loaded.notes["task"]).build()
    assert evaluate(loaded.model, task.test).accuracy > 0.7  # chance is a third


@pytest.mark.parametrize("budget", [None, 0.5])
def test_predictions_are_those_of_the_model_row_by_row(checkpoint, tmp_path, capsys, budget):
    texts = [text for _, text in rows(70, 300)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    asked = [] if budget is None else ["-b", str(budget)]
    out = tmp_path / "out.jsonl"
    words = ["predict", str(checkpoint), str(tmp_path / "texts.txt"), "--out", str(out)]
    code, _, err = run(capsys, *words, *asked, "--batch", "8")
    assert code == 0 and "70 rows predicted" in err and "rows/s" in err
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [answer["line"] for answer in answers] == list(range(1, 71))
    loaded = load(checkpoint)
    model = loaded.model if budget is None else loaded.model.cut(budget)
    for text, answer in zip(texts, answers, strict=True):
        ids = torch.tensor(loaded.words.encode([text]))
        with torch.no_grad():
            likely = model(ids).softmax(dim=-1)[0].tolist()
        assert list(answer["probabilities"].values()) == pytest.approx(likely, abs=2e-5)
        assert answer["label"] == loaded.notes["classes"][likely.index(max(likely))]


def test_bad_rows_are_named_and_the_others_are_answered(checkpoint, tmp_path, capsys):
    path = tmp_path / "in.csv"
    write(
        path, [("1", "a match"), ("2", ""), ("3", "x" * 200_000), ("4", "a bank")], ("id", "text")
    )
    path.write_bytes(path.read_bytes() + b"5,caf\xe9\n6,orbit,extra\n7,rocket\n")
    code, out, err = run(capsys, "predict", str(checkpoint), str(path), "-b", "0.75")
    assert code == 0
    found = list(csv.DictReader(io.StringIO(out)))
    assert [row["line"] for row in found] == ["2", "5", "8"]
    assert set(found[0]) == {"line", "label", *(f"p({name})" for name in sorted(CLUES))}
    for says in ("line 3: the text is empty", "line 4: a text of more than", "line 6: not UTF-8"):
        assert says in err
    assert "line 7: 3 fields in place of 2" in err
    assert "3 rows predicted, 4 could not be read" in err


@pytest.mark.slow
def test_stdin_is_read_and_stdout_written_as_a_stream(checkpoint):
    command = [sys.executable, "-m", "apportion.cli", "predict", str(checkpoint)]
    texts = "a match\n\nthe bank and the stock\n"
    done = subprocess.run(command, input=texts, capture_output=True, text=True, check=True)
    assert [row["line"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["1", "3"]
    table = 'n,text\n1,"a match, a ""goal"""\n'
    command += ["-", "--csv", "--format", "jsonl", "--soft", "-b", "0.5"]
    done = subprocess.run(command, input=table, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["line"] == 2


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_it_quietly(checkpoint, tmp_path):
    (tmp_path / "in.txt").write_text("a match\n" * 20_000)
    command = (
        f"{sys.executable} -m apportion.cli predict {checkpoint} {tmp_path / 'in.txt'} | head -n 2"
    )
    command = f"set -o pipefail; {command}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("line,label") and len(done.stdout.splitlines()) == 2
    assert "Traceback" not in done.stderr and "Broken pipe" not in done.stderr


@pytest.mark.slow
def test_predictions_reach_stdout_though_stderr_is_a_terminal(checkpoint, tmp_path):
    (tmp_path / "in.txt").write_text("a match\n" * 600)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "apportion.cli", "predict", str(checkpoint)]
    process = subprocess.Popen(
        [*command, str(tmp_path / "in.txt")], stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    assert len(out.splitlines()) == 601


@pytest.mark.slow
def test_a_pipe_is_read_and_a_device_is_not_replaced(checkpoint):
    command = f"{sys.executable} -m apportion.cli predict {checkpoint} <(echo a match) --out "
    for out in ("/dev/stdout", "/dev/null"):
        done = subprocess.run(["bash", "-c", command + out], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("line,label") == (out == "/dev/stdout")
    assert not Path("/dev/null").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "says"), [("x.txt >&-", "stdout is closed"), ("- <&-", "stdin is closed")]
)
def test_a_closed_stream_is_one_sentence(checkpoint, closed, says):
    command = f"{sys.executable} -m apportion.cli predict {checkpoint} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 2 and says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_nothing_is_left_half_written(checkpoint, tmp_path, capsys):
    out = tmp_path / "out.csv"
    out.write_text("mine")
    (tmp_path / "in.csv").write_text("title\nx\n")
    words = ["predict", str(checkpoint), str(tmp_path / "in.csv"), "--out", str(out)]
    code, _, err = run(capsys, *words)
    assert code == 2 and "in.csv, line 1: there is no column 'text'; the columns are 'title'" in err
    assert out.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.csv", "out.csv"]
    code, _, _ = run(capsys, *words, "--text", "title")
    assert code == 0 and out.read_text().startswith("line,label,")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_model_whose_answers_are_no_numbers_labels_nothing(
    checkpoint, tmp_path, capsys, form, monkeypatch
):
    answers = arrays.logits_of
    monkeypatch.setattr(arrays, "logits_of", lambda output: answers(output) * torch.nan)
    texts = tmp_path / "in.txt"
    texts.write_text("\na match\na bank\n")
    words = ["predict", str(checkpoint), str(texts), "--format", form]
    code, out, err = run(capsys, *words)
    assert code == 2 and out == ""
    assert "the model's answer to line 2 is not a number" in err
    code, _, _ = run(capsys, *words, "--out", str(tmp_path / "out"))
    assert code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_lines_are_json_or_there_are_none():
    with pytest.raises(ValueError, match="JSON"):
        list(lines_of([Prediction(1, "a", (math.nan,))], ["a"], "jsonl"))


READS = {
    "stdin": "exec {python} -m apportion.cli predict {checkpoint} <{pipe}",
    "a named pipe": "exec {python} -m apportion.cli predict {checkpoint} {pipe} --out {out}",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", READS.values(), ids=READS)
def test_an_interrupt_ends_it_though_the_input_is_open(checkpoint, tmp_path, command):
    pipe, out = tmp_path / "pipe", tmp_path / "out.csv"
    os.mkfifo(pipe)
    command = command.format(python=sys.executable, checkpoint=checkpoint, pipe=pipe, out=out)
    process = subprocess.Popen(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that a shell runs in the background ignore interrupts, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with pipe.open("w") as writer:  # waits until it is opened for reading
        writer.write("a match\n" * 2000)
        writer.flush()
        if "--out" not in command:
            assert process.stdout.read(1) == "l"  # the shell opens stdin long before it is read
        time.sleep(1.0)  # it waits for more by now; where it does not yet, it ends all the same
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)  # and not only when the pipe is closed
    assert process.returncode not in (0, -signal.SIGABRT)
    assert "Traceback" not in err and "Fatal" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_requests_that_make_no_sense_are_refused(checkpoint, trained, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("x\n")
    texts = str(tmp_path / "in.txt")
    small = tmp_path / "small"
    run(capsys, "cut", str(checkpoint), "-b", "0.5", "--out", str(small))
    for words, says in (
        ((str(checkpoint), str(tmp_path / "none.txt")), "there is no file"),
        ((str(checkpoint), texts, "-b", "1.5"), "a budget is a fraction in (0, 1]"),
        ((str(checkpoint), texts, "--soft"), "--soft needs a --budget"),
        ((str(checkpoint), texts, "--out", texts), "--out is the file of the texts"),
        ((str(checkpoint), texts, "--format", "xml"), "--format is one of csv, jsonl"),
        ((str(checkpoint), texts, "--batch", "0"), "--batch is 1 at least, not 0"),
        ((str(small), texts, "-b", "0.5"), "has no gates"),
    ):
        code, _, err = run(capsys, "predict", *words)
        assert code == 2 and says in err
    code, out, _ = run(capsys, "predict", str(small), texts)
    assert code == 0 and len(out.splitlines()) == 2  # a cut model keeps its words


def test_memory_does_not_grow_with_the_input(checkpoint):
    """Rows are taken only as their predictions are asked for."""
    loaded = load(checkpoint)
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield BadRow(taken, "bad") if taken % 5 == 0 else Row(taken, "a match")

    answers = predict(
        on_arrays(loaded.model), loaded.words, loaded.notes["classes"], endless(), chunk=50
    )
    first = [next(answers) for _ in range(120)]
    assert 150 <= taken <= 200  # the third chunk is in use, the fourth is being read ahead
    assert [answer.line for answer in first] == list(range(1, 121))


def test_answers_come_in_the_order_of_the_rows_however_they_are_batched():
    """A model that says the number in the text; rows of different lengths are sorted inside."""
    numbers = [7, 3, 12, 1, 9, 4, 0, 11, 2, 8] * 13
    texts = [f"n{number}" + " x" * (number % 5) for number in numbers]
    words = Tokenizer.learn(texts, length=8, size=99, min_count=1)
    known = {words.encode([f"n{number}"])[0][0]: number for number in numbers}
    taken, sizes = [], []

    def rows():
        for line, text in enumerate(texts, start=1):
            taken.append(line)
            yield BadRow(line, "bad") if line % 7 == 0 else Row(line, text)

    def model(input_ids, attention_mask):
        sizes.append(len(input_ids))
        said = [known[first] for first in input_ids[:, 0].tolist()]
        return np.eye(13)[said] * 20.0

    classes = [str(number) for number in range(13)]
    answers = []
    for answer in predict(model, words, classes, rows(), batch=4, chunk=10):
        # However long the input is: ten rows in use, and ten read ahead.
        assert len(taken) <= (len(answers) // 10 + 2) * 10
        answers.append(answer)
    assert [answer.line for answer in answers] == list(range(1, 131))
    for number, answer in zip(numbers, answers, strict=True):
        assert isinstance(answer, BadRow) == (answer.line % 7 == 0)
        assert isinstance(answer, BadRow) or answer.label == str(number)
    assert max(sizes) == 4


def test_no_rows_give_a_header_and_nothing_else():
    assert list(lines_of([], ["a", "b"], "csv")) == ["line,label,p(a),p(b)\n"]
    assert list(lines_of([], ["a"], "jsonl")) == []
    assert list(lines_of([Prediction(3, "a,b", (1.0,))], ["a,b"], "csv")) == [
        'line,label,"p(a,b)"\n3,"a,b",1.000000\n'
    ]


def test_throughput_compares_with_the_bare_model(checkpoint):
    loaded = load(checkpoint)
    task = task_of(loaded.notes["task"]).build()
    rows = []

    def model(**inputs):
        rows.append(len(inputs["input_ids"]))
        return on_arrays(loaded.model)(**inputs)

    record = time_predictions(model, task, batch=8, budget=1.0, repeats=5)
    assert record["rows"] == 30
    # Both arms call the model on the same batches: one round to warm up, five that count.
    assert sum(rows) == 2 * 6 * 30 and sorted(set(rows)) == [6, 8]


def test_throughput_is_what_reading_and_encoding_leave_of_the_bare_models(checkpoint, monkeypatch):
    """By a clock of our own: a call of the model takes a second, encoding a chunk takes two."""
    loaded = load(checkpoint)
    task = task_of(loaded.notes["task"]).build()
    clock, encode = Clock(monkeypatch), Tokenizer.encode

    def slow(self, texts):
        clock.spend(2.0 if len(texts) else 0.0)
        return encode(self, texts)

    def model(**inputs):
        clock.spend(1.0)
        return on_arrays(loaded.model)(**inputs)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    record = time_predictions(model, task, batch=8, budget=1.0, repeats=5)
    assert record["bare"] == 7.5  # 30 rows in four calls
    assert record["predict"] == 5.0  # and one chunk to encode
    assert record["share"] == record["low"] == record["high"] == round(4 / 6, 4)


def test_a_text_checkpoint_is_swept_and_timed_on_its_own_rows(checkpoint, trained, capsys):
    code, out, _ = run(capsys, "sweep", str(checkpoint), "-b", "0.5", "--json")
    assert code == 0
    assert {point["rows"] for point in json.loads(out)["points"]} == {30}
    code, out, _ = run(capsys, "bench", str(checkpoint), "-b", "0.5", "--repeats", "5", "--json")
    assert code == 0 and {record["length"] for record in json.loads(out)} == {16}
    data, moved = trained[0] / "data", trained[0] / "moved"
    data.rename(moved)
    try:
        code, _, err = run(capsys, "sweep", str(checkpoint), "-b", "0.5")
        assert code == 2 and "there is no folder" in err
        code, _, _ = run(capsys, "sweep", str(checkpoint), "-b", "0.5", "--data", str(moved))
        assert code == 0
    finally:
        moved.rename(data)
    code, _, err = run(
        capsys, "sweep", str(checkpoint), "--data", str(folder(trained[0] / "b", 60))
    )
    assert code == 2 and "not those that were asked for" in err


def test_a_checkpoint_of_another_task_reads_no_texts(encoder, tmp_path, capsys):
    from apportion.elastic.checkpoint import Checkpoint

    save(Checkpoint(encoder), tmp_path / "marked")
    code, _, err = run(capsys, "predict", str(tmp_path / "marked"))
    assert code == 2 and "was not trained on texts" in err
