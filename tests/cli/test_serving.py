"""The command `serve`: complaints before it starts, and a real process from start to end."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from commands import run
from nested_texts import nested_checkpoint
from small_export import write_export
from texts import CLUES
from written_forecast import write_forecast

from apportion.elastic.checkpoint import save
from apportion.serving.runtime.session import Runtime
from apportion.serving.server.keys import digest_of


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    return write_export(tmp_path_factory.mktemp("served"))


def config(tmp_path, text) -> str:
    (tmp_path / "tiers.toml").write_text(text)
    return str(tmp_path / "tiers.toml")


def test_an_address_of_the_network_without_keys_is_refused(capsys, tmp_path):
    code, _, said = run(capsys, "serve", str(tmp_path), "--host", "0.0.0.0")
    assert code == 2 and "0.0.0.0 can be reached from elsewhere, and there are no keys" in said


def test_a_folder_that_is_not_there_and_one_that_is_no_model_are_named(capsys, tmp_path):
    code, _, said = run(capsys, "serve", str(tmp_path / "none"), "--port", "0")
    assert code == 2 and "there is no folder" in said
    code, _, said = run(capsys, "serve", str(tmp_path), "--port", "0")
    assert code == 2 and str(tmp_path) in said.replace("\n", "")


def test_a_port_in_use_is_one_sentence_before_the_model_is_loaded(capsys, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, said = run(capsys, "serve", str(tmp_path), "--port", str(port))
    assert code == 2 and f"can't listen at 127.0.0.1, port {port}" in said
    code, _, said = run(capsys, "serve", str(tmp_path), "--port", "70000")
    assert code == 2 and "a port is a number from 0 to 65535" in said


def test_a_bad_config_and_bad_keys_are_one_sentence(capsys, tmp_path):
    bad = config(tmp_path, "[machine]\nworker = 1")
    code, _, said = run(capsys, "serve", str(tmp_path), "--config", bad)
    assert code == 2 and "unknown keys worker" in said
    (tmp_path / "keys").write_text(f"{digest_of('a')} ann * -\n")
    (tmp_path / "keys").chmod(0o644)
    good = config(tmp_path, '[keys]\nfile = "keys"')
    code, _, said = run(capsys, "serve", str(tmp_path), "--config", good, "--port", "0")
    assert code == 2 and "others can read or write" in said


class Server:
    """A process that serves a folder, and what it says."""

    def __init__(self, folder, *words):
        command = [
            sys.executable,
            "-m",
            "apportion.cli",
            "serve",
            str(folder),
            "--port",
            "0",
            *words,
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.url = re.search(r"http://\S+:\d+", self.wait_for("serving "))[0]

    def _read(self):
        for line in self.process.stderr:
            self.said.append(line)

    def wait_for(self, words, seconds=120.0) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in list(self.said):
                if words in line:
                    return line
            assert self.process.poll() is None, "".join(self.said)
            time.sleep(0.02)
        raise AssertionError("".join(self.said))

    def ask(self, path="/v1/classify", body=None, headers=None):
        data = None if body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, given)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.reader.join(10)
        self.process.stderr.close()
        return code


@pytest.fixture
def serving(exported, tmp_path):
    """Starts servers of a copy of the folder, and ends them."""
    started = []

    def start(text="", *words):
        folder = tmp_path / "model"
        if not folder.exists():
            shutil.copytree(exported, folder)
            write_forecast(folder)
        given = ["--config", config(tmp_path, "[machine]\nthreads = 1\n" + text)]
        started.append(Server(folder, *given, *words))
        return started[-1], folder

    yield start
    for server in started:
        server.end()


@pytest.mark.slow
def test_a_server_answers_swaps_survives_a_bad_swap_and_drains(serving):
    server, folder = serving()
    status, answer = server.ask(body={"input": "goal match league", "tier": "high-quality"})
    assert status == 200 and answer["data"][0]["label"] in CLUES
    assert answer["model"] == "model" and answer["apportion"]["budget"] == 1.0
    for _ in range(3):  # whatever is asked while one is under way is done after it
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    server.wait_for("swapped: requests from now on")
    assert (
        server.ask(body={"input": "goal match league", "budget": 1.0})[1]["data"] == answer["data"]
    )
    manifest = folder / "apportion.json"
    text = manifest.read_text()
    facts = json.loads(text)
    facts["classes"] = ["a", "b", "c"]
    manifest.write_text(json.dumps(facts))
    server.process.send_signal(signal.SIGHUP)
    assert "other labels" in server.wait_for("not swapped, the running model goes on")
    shutil.rmtree(folder)
    server.said.clear()
    server.process.send_signal(signal.SIGHUP)
    assert "no folder" in server.wait_for("not swapped")
    assert server.ask(body={"input": "a"})[0] == 200  # it still has its model
    assert server.ask(path="/readyz")[0] == 200
    assert server.end() == 0
    assert "Traceback" not in "".join(server.said) and "goal" not in "".join(server.said)


@pytest.mark.slow
def test_sigterm_under_load_loses_nobody(serving):
    server, _ = serving("grace_s = 10")
    replies, lock, ending = [], threading.Lock(), threading.Event()

    def client(number):
        for n in range(200):
            if ending.is_set():
                return  # what is asked from now on may find the port closing
            try:
                status, answer = server.ask(body={"input": [f"goal {number} {n}"] * 4})
            except urllib.error.URLError as error:
                assert isinstance(error.reason, ConnectionRefusedError), error  # it listens no more
                return
            except ConnectionError as error:  # it took the connection, and gave no answer
                replies.append((0, error))
                return
            with lock:
                replies.append((status, answer))
            if status != 200:
                return

    clients = [threading.Thread(target=client, args=(n,)) for n in range(6)]
    for one in clients:
        one.start()
    time.sleep(1.0)
    ending.set()
    server.process.send_signal(signal.SIGTERM)
    for one in clients:
        one.join(60)
    assert server.process.wait(30) == 0
    assert {status for status, _ in replies} <= {200, 503}
    assert sum(status == 200 for status, _ in replies) > 0


@pytest.mark.slow
def test_keys_open_a_server_and_the_curl_line_of_the_help_works(serving, tmp_path, capsys):
    (tmp_path / "keys").write_text(f"{digest_of('s3cret')} ann low-cost -\n")
    (tmp_path / "keys").chmod(0o600)
    server, _ = serving('[keys]\nfile = "keys"\n', "--quiet")
    assert server.ask(body={"input": "a"})[0] == 401
    key = {"Authorization": "Bearer s3cret"}
    assert server.ask(body={"input": "a"}, headers=key)[0] == 200
    server.end()
    (tmp_path / "tiers.toml").unlink()
    server, _ = serving()
    _, said, _ = run(capsys, "serve", "--help")
    said = re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", said))
    line = re.search(r"curl \S+ -H '[^']+' -d '[^']+'", said)[0]
    line = line.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["service_tier"] == "balanced", done


@pytest.mark.slow
def test_sighup_reads_keys_grace_and_name_again_and_never_opens_an_address(serving, tmp_path):
    def write(*keys):
        lines = [f"{digest_of(key)} {key} low-cost -\n" for key in keys]
        (tmp_path / "keys").write_text("".join(lines))
        (tmp_path / "keys").chmod(0o600)

    def status(key):
        headers = {"Authorization": f"Bearer {key}"}
        return server.ask(body={"input": "a"}, headers=headers)[0]

    def swap(text, says):
        config(tmp_path, "[machine]\nthreads = 1\n" + text)
        server.said.clear()
        server.process.send_signal(signal.SIGHUP)
        return server.wait_for(says)

    write("ann")
    keys = '[keys]\nfile = "keys"\n'
    server, _ = serving(keys, "--host", "0.0.0.0")
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    assert (status("ann"), status("bob")) == (200, 401)
    write("bob")
    swap("grace_s = 3\n" + keys + '[model]\nname = "other"\n', "swapped: requests")
    assert (status("ann"), status("bob")) == (401, 200)
    told = server.ask("/v1/models", headers={"Authorization": "Bearer bob"})[1]
    assert told["data"][0]["id"] == "other"
    assert "there are no keys" in swap("", "not swapped")
    assert (status("ann"), status("bob")) == (401, 200)


@pytest.mark.slow
def test_an_address_is_open_to_anybody_if_that_is_said(serving):
    server, _ = serving("", "--host", "0.0.0.0", "--open")
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    assert server.ask(body={"input": "a"})[0] == 200


@pytest.mark.slow
def test_a_checkpoint_is_calibrated_at_its_start_and_served_by_views(tmp_path):
    save(nested_checkpoint(tmp_path), tmp_path / "checkpoint")
    folder = tmp_path / "checkpoint"
    assert not (folder / "forecast.json").exists()
    server = Server(folder, "--config", config(tmp_path, "[machine]\nthreads = 1\n"))
    try:
        assert (folder / "forecast.json").is_file()
        texts = ["goal match league", "a", "market shares fall"]
        runtime = Runtime(folder, threads=1)
        for budget in (0.25, 1.0):
            status, answer = server.ask(body={"input": texts, "budget": budget})
            labels = [row["label"] for row in answer["data"]]
            assert status == 200 and answer["apportion"]["budget"] == budget
            assert labels == [label for label, _ in runtime.predict(texts, budget=budget)]
    finally:
        assert server.end() == 0
