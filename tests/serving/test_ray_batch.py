"""Batch jobs on Ray: the labels of the local engine, in order, whatever is killed on the way."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from clusters import ON_RAY, two_cpus, workers
from commands import run as command
from pretrained import write_classifier
from texts import CLUES, rows, write
from virtual import certificate

from apportion.elastic.checkpoint import Checkpoint, save
from apportion.elastic.elastic import Elastic
from apportion.models.hub import tokenizer_of_folder
from apportion.models.reloading import load_folder
from apportion.serving.batch import ray_cluster
from apportion.serving.batch.parts import Parts
from apportion.serving.batch.questions import Question
from apportion.serving.batch.ray_batch import (
    PART,
    Actor,
    actors_for,
    job_folder,
    names_of,
    predict_on_ray,
)
from apportion.serving.batch.ray_cluster import require_ray
from apportion.serving.guarantees.cascade import Cascade, ask, margins_of
from apportion.serving.guarantees.certificate import Certificate
from apportion.serving.runtime.exporting import export
from apportion.serving.runtime.session import Runtime

TEXTS = [text for _, text in rows(240, 9)]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a small checkpoint and its export."""
    home = tmp_path_factory.mktemp("models")
    folder = write_classifier(home / "classifier", sorted(CLUES))
    torch.manual_seed(2)
    elastic = Elastic(load_folder(folder)[0], ("heads", "feedforward"), length=24, block=32).eval()
    with torch.no_grad():
        for parameter in elastic.model.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    elastic = elastic.nested(torch.rand(len(elastic.units))).made_for("nested", 1, lowest=0.25)
    made = Checkpoint(elastic, {"classes": sorted(CLUES)}, words=tokenizer_of_folder(folder))
    save(made, home / "checkpoint")
    export(made, home / "exported")
    return home


@pytest.fixture(scope="module")
def cluster():
    with two_cpus():
        yield


@pytest.fixture
def texts(tmp_path) -> Path:
    """The texts in a CSV file, which has a bad row, and a Parquet file."""
    home = tmp_path / "texts"
    home.mkdir()
    lines = [(str(number), text) for number, text in enumerate(TEXTS[:120])]
    write(home / "a.csv", [*lines[:50], ("bad", ""), *lines[50:]], ("key", "text"))
    table = pa.table({"key": [str(n) for n in range(120, 240)], "text": TEXTS[120:]})
    pq.write_table(table, home / "b.parquet")
    return home


def read(out: Path) -> list[dict[str, str]]:
    with out.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_answers(found, runtime: Runtime, budget: float) -> None:
    """Every text once, in order, with the label and probability of the local engine."""
    assert [row["id"] for row in found] == [str(number) for number in range(240)]
    local = runtime.predict(TEXTS, budget=budget)
    assert [row["label"] for row in found] == [label for label, _ in local]
    for row, (label, share) in zip(found, local, strict=True):
        assert float(row[f"p({label})"]) == pytest.approx(share, abs=2e-6)


@pytest.mark.usefixtures("cluster")
class TestOnRay:
    pytestmark = ON_RAY

    def test_labels_are_those_of_the_local_engine_row_by_row(self, models, texts, tmp_path):
        bad = []
        out = tmp_path / "out.csv"
        done = predict_on_ray(
            models / "exported",
            texts,
            out=out,
            id="key",
            budget=0.5,
            part=2048,
            on_bad_row=lambda *told: bad.append(told),
        )
        assert (done.rows, done.bad, done.before) == (240, 1, 0)
        assert bad == [("a.csv", 52, "the text is empty")]
        found = read(out)
        check_answers(found, Runtime(models / "exported"), 0.5)
        assert [row["file"] for row in found] == ["a.csv"] * 120 + ["b.parquet"] * 120
        assert not job_folder(out).exists()

    def test_certificates_and_routes_are_those_of_the_local_engine(self, models, tmp_path, capsys):
        made = write_certificate(models / "exported", tmp_path / "c.json")
        routing = tmp_path / "routing.toml"
        routing.write_text(
            'tag = "kind"\n[default]\nbudget = 0.25\n[tags.law]\ncertificate = "c.json"\n'
            f"[tags.old]\nfolder = {str(models / 'checkpoint')!r}\nbudget = 0.5\n"
        )
        tagged = [(("law", "old", "")[n % 3], text) for n, text in enumerate(TEXTS)]
        write(tmp_path / "texts.csv", tagged, ("kind", "text"))
        folder, texts = str(models / "exported"), str(tmp_path / "texts.csv")
        for option in (["--certificate", str(tmp_path / "c.json")], ["--routing", str(routing)]):
            told = []
            for engine in ("local", "ray"):
                out = tmp_path / f"{engine}.csv"
                words = ["predict", folder, texts, "--out", str(out), *option]
                words += ["--engine", "ray"] if engine == "ray" else []
                assert command(capsys, *words)[0] == 0
                told.append([(r["line"], r["label"], float(r["budget"])) for r in read(out)])
            assert told[0] == told[1] and len(told[0]) == len(TEXTS)
            assert len({budget for _, _, budget in told[0]}) > 1
        ended = {
            budget for (kind, _), (_, _, budget) in zip(tagged, told[1], strict=True) if not kind
        }
        assert ended == {0.25} and made.certified

    def test_an_actor_that_is_killed_costs_no_row_and_doubles_none(self, models, texts, tmp_path):
        killed: list[int] = []

        def kill(done: int, of: int) -> None:
            for actor in workers("MapWorker(MapBatches")[:1] if len(killed) < 2 else []:
                killed.append(actor.pid)
                actor.kill()

        out = tmp_path / "out.parquet"
        predict_on_ray(
            models / "exported", texts, out=out, id="key", budget=0.5, part=1024, progress=kill
        )
        assert killed  # the second one only where the job is not done before
        table = pq.read_table(out).to_pylist()
        check_answers(table, Runtime(models / "exported"), 0.5)

    def test_a_job_whose_driver_is_killed_goes_on(self, models, texts, tmp_path):
        out = tmp_path / "out.csv"
        code = (
            "from clusters import two_cpus\n"
            "from apportion.serving.batch.ray_batch import predict_on_ray\n"
            "with two_cpus():\n"
            f"    predict_on_ray({str(models / 'exported')!r}, {str(texts)!r}, out={str(out)!r},\n"
            "                   id='key', budget=0.5, part=1024, actors=1)\n"
        )
        driver = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        parts = Parts(job_folder(out))
        until = time.monotonic() + 300
        while parts.rows() == 0 and time.monotonic() < until and driver.poll() is None:
            time.sleep(0.02)
        below = psutil.Process(driver.pid).children(recursive=True)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        before = parts.rows()
        assert 0 < before < 241 and not out.exists()
        psutil.wait_procs(below, timeout=60)
        done = predict_on_ray(models / "exported", texts, out=out, id="key", budget=0.5, part=1024)
        assert done.before >= before and (done.rows, done.bad) == (240, 1)
        check_answers(read(out), Runtime(models / "exported"), 0.5)


def rows_for_an_actor(tags=None) -> pa.Table:
    """All texts as a reader gives them to an actor, and a row that could not be read."""
    from apportion.serving.batch.ray_texts import SCHEMA

    given = [
        {"row": n, "shard": 0, "line": 1, "text": text, "tag": tags and tags[n % len(tags)]}
        for n, text in enumerate(TEXTS)
    ]
    bad = {"row": 240, "shard": 0, "line": 1, "problem": "the text is empty"}
    return pa.Table.from_pylist([*given, bad], schema=SCHEMA)


@pytest.mark.parametrize("kind, budget", [("exported", None), ("checkpoint", 0.4)])
def test_an_actor_answers_as_the_runtime_does(models, kind, budget):
    question = Question(str(models / kind), budget=budget)
    said = Actor(question)(rows_for_an_actor()).to_pylist()
    runtime = Runtime(models / kind, levels=[budget] if budget else None)
    local = runtime.predict(TEXTS, budget=budget or 1.0)
    assert [one["label"] for one in said[:-1]] == [label for label, _ in local]
    assert {one["budget"] for one in said[:-1]} == {budget or 1.0}
    assert (said[-1]["label"], said[-1]["problem"]) == (None, "the text is empty")


def test_an_actor_routes_rows_by_their_tags(models, tmp_path):
    file = tmp_path / "routing.toml"
    file.write_text('tag = "kind"\n[tags.easy]\nbudget = 0.25\n[tags.hard]\nbudget = 1.0\n')
    question = Question(str(models / "exported"), routing=str(file))
    said = Actor(question)(rows_for_an_actor(["easy", "hard", "odd"])).to_pylist()
    runtime = Runtime(models / "exported")
    for place, budget in ((0, 0.25), (1, 1.0)):
        local = runtime.predict(TEXTS[place::3], budget=budget)
        assert [one["label"] for one in said[place:-1:3]] == [label for label, _ in local]
        assert {one["budget"] for one in said[place:-1:3]} == {budget}
    assert all("'odd' has no route" in one["problem"] for one in said[2:-1:3])


def write_certificate(folder: Path, path: Path, **changes) -> Certificate:
    """A certificate of a folder, by which some texts end at its lowest level."""
    runtime = Runtime(folder)
    lowest = ask(runtime, runtime.tokenizer.encode(TEXTS), level=runtime.levels[0])
    thresholds = (float(np.median(margins_of(lowest))), *[None] * (len(runtime.levels) - 2))
    shares = (1.0, *[0.0] * (len(runtime.levels) - 1))
    values = {"levels": runtime.levels, "ends": shares, "identity": dict(runtime.identity)}
    made = certificate(thresholds, **{**values, **changes})
    made.save(path)
    return made


def test_an_actor_answers_by_a_certificate_as_the_cascade_does(models, tmp_path):
    made = write_certificate(models / "exported", tmp_path / "certificate.json")
    question = Question(str(models / "exported"), certificate=str(tmp_path / "certificate.json"))
    said = Actor(question)(rows_for_an_actor()).to_pylist()[:-1]
    local = Cascade.certified(Runtime(models / "exported"), made).predict(TEXTS)
    assert [(one["label"], one["budget"]) for one in said] == [(la, b) for la, _, b in local]
    assert len({one["budget"] for one in said}) > 1  # some texts went on, and some did not


def test_a_certificate_of_another_model_starts_no_job(models, texts, tmp_path):
    path, out = tmp_path / "certificate.json", tmp_path / "out.csv"
    identity = {**Runtime(models / "exported").identity, "weights": "y" * 64}
    write_certificate(models / "exported", path, identity=identity)
    with pytest.raises(ValueError, match=r"other weights .*certify this folder"):
        predict_on_ray(models / "exported", texts, out=out, certificate=path)
    assert not out.exists() and not job_folder(out).exists()


def test_a_folder_of_another_job_is_not_gone_on_with(models, texts, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    monkeypatch.setattr("apportion.serving.batch.ray_batch._run", lambda *words, **more: None)
    monkeypatch.setattr(
        "apportion.serving.batch.ray_batch.connected", lambda address: nullcontext()
    )
    with pytest.raises(OSError, match="241 of 241 rows have no answer"):
        predict_on_ray(models / "exported", texts, out=out, budget=0.5)
    assert job_folder(out).is_dir() and not out.exists()
    for changes, says in [({"budget": 0.25}, "other budget"), ({"id": "key"}, "other columns")]:
        with pytest.raises(ValueError, match=says):
            predict_on_ray(models / "exported", texts, out=out, **({"budget": 0.5} | changes))
    (texts / "a.csv").write_text("text\nanother\n")
    with pytest.raises(ValueError, match="other texts; remove that folder to start anew"):
        predict_on_ray(models / "exported", texts, out=out, budget=0.5)


def test_a_job_that_fails_before_its_first_answer_leaves_nothing(
    models, texts, tmp_path, monkeypatch
):
    @contextmanager
    def fails(address):
        raise OSError("Ray did not start on this machine")
        yield

    monkeypatch.setattr("apportion.serving.batch.ray_batch.connected", fails)
    with pytest.raises(OSError, match="did not start"):
        predict_on_ray(models / "exported", texts, out=tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_one_file_has_work_for_as_many_actors_as_it_has_parts():
    assert actors_for(2_000_000, asked=2, cpus=8.0, part=PART) == 2
    assert actors_for(2_000_000, asked=None, cpus=8.0, part=PART) == 8
    assert actors_for(100, asked=2, cpus=8.0, part=PART) == 1


def test_files_of_one_name_in_two_folders_are_told_apart():
    assert names_of([Path("/a/x.csv"), Path("/b/y.csv")]) == ("x.csv", "y.csv")
    assert names_of([Path("/c/a/x.csv"), Path("/c/b/x.csv")]) == ("a/x.csv", "b/x.csv")


def test_a_row_in_two_parts_is_one_answer(tmp_path):

    (tmp_path / "done").mkdir()
    for name, numbers in (("a", [0, 1, 2]), ("b", [2, 3])):
        pq.write_table(pa.table({"row": numbers}), tmp_path / "done" / f"{name}.parquet")
    assert Parts(tmp_path).numbers().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("token", "mode"), [(True, "token"), (False, None)])
def test_whoever_has_a_token_of_rays_shows_it(tmp_path, monkeypatch, token, mode):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    if token:
        (tmp_path / "token").write_text("secret")
    require_ray()
    found = os.environ.get("RAY_AUTH_MODE")
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # is undone at the end, whoever set it
    monkeypatch.delenv("RAY_AUTH_MODE")
    assert found == mode


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_whoever_listens_and_says_nothing_or_has_a_slow_name_is_no_cluster(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_QUICK", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ValueError, match="no Ray answers at '127"):
            ray_cluster.check_answers(f"127.0.0.1:{silent.getsockname()[1]}")
    # A look at a name is bounded by no timeout of the socket's.
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: time.sleep(5))
    started = time.monotonic()
    with pytest.raises(ValueError, match="no Ray answers at 'nowhere"):
        ray_cluster.check_answers("nowhere.example:6379")
    assert time.monotonic() - started < 5  # it did not wait for it


@pytest.mark.slow
def test_an_address_without_ray_fails_by_a_sentence_in_time(models, texts, tmp_path, capsys):
    out = tmp_path / "out.csv"
    words = ["predict", str(models / "exported"), str(texts), "--engine", "ray", "--out", str(out)]
    started = time.monotonic()
    code, said, told = command(capsys, *words, "--address", f"127.0.0.1:{closed_port()}")
    assert (code, said) == (2, "") and "no Ray answers at '127.0.0.1:" in told
    assert time.monotonic() - started < 60  # 15 s on a machine that is not busy
    assert not out.exists() and not job_folder(out).exists()


def refused(capsys, *words: object) -> str:
    code, said, told = command(capsys, *map(str, words))
    assert (code, said) == (2, "")
    assert "Traceback" not in told
    return told


def test_bad_input_is_one_sentence_and_leaves_nothing(models, texts, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out.csv"
    model, ray = models / "exported", ("--engine", "ray", "--out", out)
    for words, says in [
        ((model, texts, "--engine", "ray"), "--engine ray writes a file"),
        ((model, "-", *ray), "reads files, not stdin"),
        ((model, texts, "--engine", "spark", "--out", out), "--engine is one of local, ray"),
        ((model, texts / "a.csv", "--address", "auto"), "--address needs --engine ray"),
        ((model, texts / "a.csv", "--id", "key"), "--id needs --engine ray"),
        ((model, texts / "*.tsv", *ray), "no file matches"),
        ((model, texts / "b.parquet", *ray, "--text", "body"), "there is no column 'body'"),
        ((model, texts / "b.parquet", *ray, "--id", "body"), "there is no column 'body'"),
        ((model, texts, *ray, "--actors", "0"), "must be at least 1"),
        ((model, texts, *ray, "--threads", "2"), "each actor has one thread"),
        ((model, texts, *ray, "--soft"), "--soft is for --engine local"),
        ((model, texts, *ray, "--length", "99"), "--length is for --engine local"),
        ((model, texts, *ray, "--until-sure", "r.json"), "--until-sure is for --engine local"),
        ((model, texts, *ray, "-b", "0.01"), "below the lowest level"),
        ((model, texts, "--engine", "ray", "--out", tmp_path / "x.txt"), "ends in .csv, .jsonl or"),
        ((model, texts, "--engine", "ray", "--out", texts / "a.csv"), "one of the files of the"),
    ]:
        told = refused(capsys, "predict", *words)
        assert says in " ".join(told.split()), (words, told)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "ray is not installed: pip install" in refused(capsys, "predict", model, texts, *ray)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]


def test_addresses_that_are_none_are_refused(models, texts, tmp_path, capsys):
    ray = ("--engine", "ray", "--out", tmp_path / "out.csv")
    for address in ("ray://host:10001", "host", "host:port"):
        told = refused(capsys, "predict", models / "exported", texts, *ray, "--address", address)
        assert "an address of Ray is host:port or auto" in told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_on_two_nodes_survives_the_loss_of_one(models, tmp_path):
    """By the tool that kills them: `ray start` twice, the command's own job, every row checked."""
    write(tmp_path / "t.csv", [("", text) for text in TEXTS], ("key", "text"))
    tool = Path(__file__).parents[2] / "tools" / "ray_chaos.py"
    words = [str(models / "exported"), str(tmp_path / "t.csv"), "--kills", "1", "--part", "2048"]
    words += ["--victims", "node", "--out", str(tmp_path / "kills.jsonl"), "--seed", "1"]
    done = subprocess.run(
        [sys.executable, str(tool), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (tmp_path / "kills.jsonl").read_text().splitlines()]
    assert [one["victim"] for one in found if one["killed"]] == ["node"]
    assert all(one["same"] and one["rows"] == 240 for one in found)
