"""The application on Ray Serve: asked, reconfigured while it runs, asked again."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from clusters import ON_RAY
from small_export import write_export
from texts import CLUES
from written_forecast import write_forecast

ROOT = Path(__file__).parents[2]
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
            assert ask(port, body={"input": "a", "tier": "dear"})[0] == 200
            assert ask(port, "/readyz")[0] == 200
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
