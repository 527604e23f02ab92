"""The application on Ray Serve: asked, reconfigured while it runs, asked again."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from asgi import call
from clusters import ON_RAY
from small_export import write_export
from texts import CLUES
from virtual import certificate
from written_forecast import write_forecast

from apportion.serving.runtime.session import Runtime
from apportion.serving.server import ray_serving
from apportion.serving.server.keys import digest_of
from apportion.serving.server.ray_serving import Replica, serve_config

ROOT = Path(__file__).parents[2]
TIER = {"tier": [{"name": "all", "max_budget": 1.0}]}
TIERS = """
[model]
name = "news"
[[tier]]
name = "{name}"
max_budget = {budget}
"""


def ask(port, path="/v1/classify", body=None):
    data = None if body is None else json.dumps(body).encode()
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, head)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def wait_for(said, words, process, seconds=240):
    end = time.monotonic() + seconds
    while words not in said.read_text():
        assert time.monotonic() < end and process.poll() is None, said.read_text()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = write_export(tmp_path_factory.mktemp("ray"))
    write_forecast(made)
    return made


@pytest.fixture
def replica(folder, tmp_path, monkeypatch):
    """A function that starts one, as Ray does."""
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    started = []

    def start(tables=None, **changes):
        one = Replica(str(folder), 1, str(tmp_path), **{"anyone": True, **changes})
        started.append(one)
        one.__serve_build_asgi_app__()
        if tables is not None:
            asyncio.run(one.reconfigure(tables))
        return one

    yield start
    for one in started:
        one.engine.stop()


def keys(home, mode=0o600):
    path = home / "keys.txt"
    path.write_text(f"{digest_of('secret')} ann * -\n")
    path.chmod(mode)
    return {"keys": {"file": path.name}}


def promised(folder, path, **changes):
    runtime = Runtime(folder)
    made = certificate(
        identity=runtime.identity, levels=runtime.levels, thresholds=(0.5, 0.5), **changes
    )
    made.save(path)
    return {"certificate": {"file": path.name}}


def status_of(one, key=None):
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return call(one._application, "GET", "/v1/models", headers=headers).status


BAD = [
    ({"tier": [{"name": "low", "max_budget": 0.1}]}, r"tier 'low' allows .* has no such level"),
    ({"policy": {"worth": [0.5, 0.6]}}, "worth has 2 numbers; the model has 3 levels"),
    ({"keys": {"file": "open.txt"}}, "others can read or write"),
    ({"keys": {"file": "none.txt"}}, "can't be read"),
    ({"certificate": {"file": "none.json"}}, "there is no certificate"),
    ({"machine": {"workers": 2}}, r"\[machine\] workers is not read on Ray: a replica has one"),
    ({"machine": {"threads": 2}}, r"\[machine\] threads is not read on Ray: .* --threads"),
    ({"machine": {"grace_s": 9.0}}, r"\[machine\] grace_s is not read .* graceful_shutdown"),
]


@pytest.fixture
def open_keys(tmp_path):
    keys(tmp_path, 0o644)
    (tmp_path / "keys.txt").rename(tmp_path / "open.txt")


@pytest.mark.usefixtures("open_keys")
@pytest.mark.parametrize(("tables", "says"), BAD)
def test_a_bad_config_is_refused_before_ray_hears_of_it(folder, tmp_path, tables, says):
    with pytest.raises(ValueError, match=says):
        serve_config(folder, tables, home=tmp_path)


@pytest.mark.usefixtures("open_keys")
def test_a_replica_that_runs_goes_on_after_a_bad_config_and_says_why(replica, caplog):
    one = replica(TIER)
    for tables, says in BAD:
        caplog.clear()
        model = one.engine.queue.model
        asyncio.run(one.reconfigure(tables))
        assert caplog.messages[0].startswith("not reconfigured, the running model goes on")
        assert re.search(says, caplog.messages[0])
        assert one.engine.queue.model is model and status_of(one) == 200
    asyncio.run(one.reconfigure({**TIER, "model": {"name": "after"}}))
    assert one._application.state.service.name == "after"


@pytest.mark.usefixtures("open_keys")
def test_a_replica_that_starts_complains_of_a_bad_config(replica):
    for tables, says in BAD:
        with pytest.raises(ValueError, match=says):
            replica(tables)


def test_a_replica_keeps_its_model_where_a_folder_has_other_labels(replica, folder, monkeypatch):
    one = replica(TIER)
    model = one.engine.queue.model
    other = replace(model, classes=("x", "y"))
    monkeypatch.setattr(ray_serving, "load_model", lambda *_: other)
    asyncio.run(one.reconfigure({**TIER, "folder": "other", "model": {"name": "x"}}))
    assert one.engine.queue.model is model and one.folder == str(folder)
    assert one._application.state.service.name == folder.name


def test_a_certificate_and_its_audits_change_while_the_replica_runs(replica, folder, tmp_path):
    one = replica(TIER)
    assert one.engine.queue.promised() == {}
    tables = promised(folder, tmp_path / "mine.json")
    asyncio.run(one.reconfigure({**TIER, **tables}))
    first = one.engine.queue.model.promise
    assert first.certificate.rows == certificate().rows and first.share == 0.02
    tables["certificate"]["audit"] = 0.5
    asyncio.run(one.reconfigure({**TIER, **tables}))
    assert one.engine.queue.model.promise is first and first.share == 0.5
    promised(folder, tmp_path / "mine.json", rows=999)
    asyncio.run(one.reconfigure({**TIER, **tables}))
    assert one.engine.queue.model.promise.certificate.rows == 999
    asyncio.run(one.reconfigure(TIER))
    assert one.engine.queue.promised() == {}


def test_a_replica_with_keys_is_never_opened_by_a_config_without(replica, tmp_path):
    given = keys(tmp_path)
    one = replica({**TIER, **given}, anyone=False)
    assert status_of(one) == 401 and status_of(one, "secret") == 200
    asyncio.run(one.reconfigure(TIER))
    assert status_of(one) == 401 and status_of(one, "secret") == 200
    with pytest.raises(ValueError, match=r"there are no keys: give \[keys\] a file"):
        replica(TIER, anyone=False)
    assert status_of(replica(anyone=False)) == 401  # without any configuration
    assert status_of(replica(TIER)) == 200


def test_an_address_of_the_network_needs_keys_or_the_word(folder, tmp_path):
    def is_open(tables, host, **words):
        made = serve_config(folder, tables, home=tmp_path, host=host, **words)
        return made["applications"][0]["args"]["open"]

    for host in ("0.0.0.0", "::", "node.example"):
        with pytest.raises(ValueError, match=f"{host} can be reached from elsewhere"):
            serve_config(folder, TIER, home=tmp_path, host=host)
        assert is_open(TIER, host, anyone=True) and not is_open(keys(tmp_path), host)
    assert is_open(TIER, "127.0.0.1") and is_open(TIER, "localhost")


def test_the_tool_refuses_the_network_without_keys(folder, tmp_path, monkeypatch):
    def run(*words):
        script = ROOT / "tools" / "ray_serve.py"
        monkeypatch.setattr(sys, "argv", [str(script), str(folder), *words])
        runpy.run_path(str(script), run_name="__main__")

    written = tmp_path / "serve.yaml"
    with pytest.raises(SystemExit, match=r"0\.0\.0\.0 can be reached .* or say --open"):
        run("--host", "0.0.0.0", "--write", str(written))
    assert not written.exists()
    run("--host", "0.0.0.0", "--open", "--write", str(written))
    assert json.loads(written.read_text())["applications"][0]["args"]["open"] is True


def test_other_keys_in_the_same_file_are_another_config(folder, tmp_path):
    tables = {**TIER, **keys(tmp_path)}
    first = serve_config(folder, tables, home=tmp_path)
    assert serve_config(folder, tables, home=tmp_path) == first
    (tmp_path / "keys.txt").write_text(f"{digest_of('another')} bob * -\n")
    assert serve_config(folder, tables, home=tmp_path) != first


def test_a_model_is_named_after_its_folder_without_colons(replica):
    one = replica()
    one.folder = "runs/a:b"
    one.__serve_build_asgi_app__()
    assert one._application.state.service.name == "a-b"


class TestOnRay:
    pytestmark = ON_RAY

    def test_tiers_change_while_replicas_run_and_a_bad_config_changes_nothing(self, tmp_path):
        folder = write_export(tmp_path)
        write_forecast(folder)
        config = tmp_path / "tiers.toml"
        config.write_text(TIERS.format(name="cheap", budget=0.25))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        script = [sys.executable, str(ROOT / "tools" / "ray_serve.py"), str(folder)]
        words = ["--config", str(config), "--port", str(port), "--cpus", "0.5"]
        said = tmp_path / "said"
        with said.open("w") as out:
            process = subprocess.Popen([*script, *words], stderr=out, stdout=out)
        try:
            wait_for(said, "on Ray", process)
            status, before = ask(port, body={"input": "goal match league", "timeout_ms": 20_000})
            assert status == 200 and before["data"][0]["label"] in CLUES
            assert (before["model"], before["service_tier"]) == ("news", "cheap")
            assert before["apportion"]["budget"] == 0.25
            assert ask(port, body={"input": "a", "tier": "dear"})[0] == 422
            config.write_text(TIERS.format(name="dear", budget=1.0))
            process.send_signal(signal.SIGHUP)
            wait_for(said, "reconfigured", process)
            end = time.monotonic() + 60
            while (reply := ask(port, body={"input": "a b", "tier": "dear"}))[0] != 200:
                assert time.monotonic() < end, reply
                time.sleep(0.2)
            assert reply[1]["apportion"]["asked"] == 1.0
            told = ask(port, "/v1/forecast")[1]
            assert told["answered"] == 2  # one and the same engine: nothing was restarted
            config.write_text('[[tier]]\nname = "x"\n')
            process.send_signal(signal.SIGHUP)
            wait_for(said, "not reconfigured: [[tier]] 1 has no max_budget", process)
            config.write_text(TIERS.format(name="low", budget=0.1))
            process.send_signal(signal.SIGHUP)
            wait_for(said, "not reconfigured: tier 'low' allows", process)
            assert ask(port, body={"input": "a", "tier": "dear"})[0] == 200
            assert ask(port, "/readyz")[0] == 200
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
