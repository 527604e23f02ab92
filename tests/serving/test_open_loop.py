"""Load: times fixed beforehand, ids counted on both sides, this machine only."""

from __future__ import annotations

import json
import socket
import socketserver
import statistics
import threading
import time
from contextlib import contextmanager
from itertools import pairwise

import pytest
from small_export import write_export
from texts import rows, write
from typer.testing import CliRunner
from written_forecast import write_forecast

from apportion.serving.server.configuration import config_of, tomllib
from apportion.serving.server.open_loop import Hit, Shot, fire, saturate, send_times, summarise
from apportion.study.load_arms import LoadPlan, arm_config, read_texts
from apportion.study.records import record_of


def test_poisson_and_gamma_arrivals_have_their_rate_and_spread():
    for trace, cv2 in (("poisson", 1.0), ("gamma:8", 8.0)):
        times = send_times(trace, rate=200.0, seconds=100.0, seed=3)
        gaps = [later - one for one, later in pairwise(times)]
        assert times == sorted(times) and times[-1] < 100.0
        assert statistics.mean(gaps) == pytest.approx(0.005, rel=0.1)
        assert statistics.variance(gaps) / statistics.mean(gaps) ** 2 == pytest.approx(cv2, rel=0.3)
    assert send_times("poisson", rate=9, seconds=5) == send_times("poisson", rate=9, seconds=5)


def test_a_trace_keeps_its_gaps_and_is_scaled_to_the_rate(tmp_path):
    stamps = ["2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0", "2023-11-16 18:17:06"]
    (tmp_path / "t.csv").write_text("TIMESTAMP,Tokens\n" + "".join(f"{s},1\n" for s in stamps))
    first, second = send_times(str(tmp_path / "t.csv"), rate=1.0, seconds=50.0)[:2]
    assert (second - first) / first == pytest.approx(2.0 / 0.02004, rel=1e-3)


@pytest.mark.parametrize(
    ("trace", "options", "says"),
    [
        ("poisson", {"rate": 1e4, "seconds": 600}, "are more than 100000"),
        ("poisson", {"rate": 1.0, "seconds": 1e6}, "600 s at most"),
        ("poisson", {"rate": 0.0, "seconds": 1.0}, "a rate above 0"),
        ("gamma:x", {"rate": 1.0, "seconds": 1.0}, "as gamma:8, not 'gamma:x'"),
        ("none.csv", {"rate": 1.0, "seconds": 1.0}, "has no column TIMESTAMP"),
    ],
)
def test_bad_arrivals_are_one_sentence(trace, options, says):
    with pytest.raises(ValueError, match=says):
        send_times(trace, **options)


def test_load_is_for_this_machine_only():
    with pytest.raises(ValueError, match="load is for a server on this machine, not for example"):
        fire("http://example.org/", [])


@contextmanager
def answering(keep=True, body=b'{"apportion": {"budget": 1.0}, "data": []}'):
    """A server in a thread that answers everything alike: its address, and its connections."""
    connections, requests = [], []

    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            connections.append(self.client_address)
            while line := self.rfile.readline():
                number, length = "", 0
                while (header := self.rfile.readline().strip().lower()) != b"":
                    name, _, value = header.decode().partition(": ")
                    number = value if name == "x-request-id" else number
                    length = int(value) if name == "content-length" else length
                self.rfile.read(length)
                requests.append(number)
                head = f"HTTP/1.1 200 OK\r\nX-Request-Id: {number}\r\nContent-Length: {len(body)}"
                whole = head.encode() + b"\r\n\r\n" + body
                for part in (whole[:30], whole[30:]):  # answers may come in pieces
                    self.wfile.write(part)
                    self.wfile.flush()
                if not keep:
                    return
                assert line.startswith(b"POST /v1/classify ")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 512

    with Server(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", connections, requests
        server.shutdown()


def test_a_connection_that_the_server_closed_is_no_lost_request():
    with answering(keep=False) as (url, connections, requests):
        found = fire(url, [Shot(str(n), 0.05 * n, {}, 1000.0) for n in range(5)])
    assert [one.status for one in found] == [200] * 5
    assert sorted(requests) == ["0", "1", "2", "3", "4"], "and none is sent twice"
    assert len(connections) >= 5


def test_every_answer_belongs_to_its_request_and_comes_at_its_time():
    with answering() as (url, connections, requests):
        found = fire(url, [Shot(f"n{n}", 0.002 * (n // 4), {}, 1000.0) for n in range(40)])
    assert [one.number for one in found] == [f"n{n}" for n in range(40)]
    assert len(requests) == 40 and len(connections) == 40
    assert all(0.0 <= one.lateness <= one.latency for one in found)


def test_what_is_not_answered_is_lost_and_said_to_be():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        (found,) = fire(url, [Shot("a", 0.0, {}, 50.0)], wait=0.2)
    assert found.status == 0 and found.latency >= 0.2
    assert summarise([found])["lost"] == 1


def test_clients_that_saturate_a_server_count_the_rows_that_it_answers():
    bodies = [{"input": ["a", "b", "c"]}, {"input": ["d", "e", "f"]}]
    with answering() as (url, connections, requests):
        started = time.perf_counter()
        rate = saturate(url, bodies, clients=4, seconds=0.3)
        took = time.perf_counter() - started
    assert len(connections) == 4
    assert rate == pytest.approx(3 * len(requests) / took, rel=0.2)


def hit(status=200, latency=0.01, number="a", lateness=0.0, **told):
    shot = Shot("a", 0.0, {}, 50.0)
    return Hit(shot, status, latency, lateness, number, {"budget": 1.0, **told})


def test_attainment_is_of_all_requests_and_ids_are_counted():
    found = summarise([hit(), hit(latency=0.2), hit(429), hit(0), hit(504), hit(number="b")])
    assert (found["sent"], found["answered"], found["met"]) == (6, 3, 2)
    assert found["attainment"] == pytest.approx(2 / 6)
    assert (found["refused"], found["lost"], found["timed_out"], found["twice"]) == (1, 1, 1, 2)
    assert not found["void"] and summarise([hit(lateness=0.1)])["void"]


def test_right_answers_are_counted_where_labels_are_known():
    known = Shot("a", 0.0, {}, 50.0, ("x", "y"))
    right = Hit(known, 200, 0.01, 0.0, "a", {"budget": 1.0}, ("x", "z"))
    late = Hit(known, 200, 0.09, 0.0, "a", {"budget": 1.0}, ("x", "y"))
    refused = Hit(known, 429, 0.01, 0.0, "a", {})
    found = summarise([right, late, refused, hit()])
    counts = ("labelled_rows", "answered_rows", "right_rows", "right_in_time")
    assert [found[name] for name in counts] == [6, 4, 3, 1]
    assert "right_rows" not in summarise([hit()])


def test_texts_are_lines_or_the_columns_label_and_text(tmp_path):
    (tmp_path / "t.txt").write_text("one\n\ntwo\n")
    assert read_texts(tmp_path / "t.txt") == [("one", None), ("two", None)]
    (tmp_path / "t.csv").write_text('label,text\na,"one, two"\n')
    assert read_texts(tmp_path / "t.csv") == [("one, two", "a")]
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="has no columns label and text"):
        read_texts(tmp_path / "t.csv")
    with pytest.raises(ValueError, match="there is no file"):
        read_texts(tmp_path / "none")


ARMS = ("ladder", "slackfit", "static-full", "static-small", "static-0.5", "refuse-at-512")


@pytest.mark.parametrize("arm", [*ARMS, "refuse-at-7"])
def test_the_configuration_of_every_arm_is_one_that_a_server_takes(arm, tmp_path):
    config = config_of(tomllib.loads(arm_config(arm, (0.25, 0.5, 1.0))), tmp_path)
    config = config.fitted((0.25, 0.5, 1.0))
    levels = {tier.levels_of((0.25, 0.5, 1.0)) for tier in config.tiers}
    wanted = {"static-full": {(1.0, 1.0)}, "static-small": {(0.25, 0.25)}}
    wanted |= {"static-0.5": {(0.5, 0.5)}, "refuse-at-7": {(1.0, 1.0)}}
    if arm in wanted:
        assert levels == wanted[arm]
    # One that queues has no limit in its way, and one that refuses has that one alone.
    limits = config.machine.max_rows, config.machine.max_tokens
    if arm.startswith("refuse"):
        assert limits == (int(arm[10:]), 100_000_000)
    else:
        assert limits == ((1_000_000, 100_000_000) if "static" in arm else (20_000, 200_000))


def test_a_plan_that_cannot_run_is_refused():
    with pytest.raises(ValueError, match="there is no arm 'best'"):
        LoadPlan(arms=("best",))
    with pytest.raises(ValueError, match="a multiple of whole or small, not of 'half'"):
        LoadPlan(of="half")
    with pytest.raises(ValueError, match="turns is a number above 0"):
        LoadPlan(turns=0)


@pytest.mark.slow
def test_arms_take_turns_and_both_sides_count_the_same(tmp_path):
    from apportion.cli import app

    folder = write_export(tmp_path)
    write_forecast(folder, each=1.0)
    write(tmp_path / "texts.csv", rows(20, 3))
    words = ["load", str(folder), str(tmp_path / "texts.csv"), "--seconds", "2", "--load", "0.2"]
    words += ["--arms", "ladder,refuse-at-64", "--out", str(tmp_path / "load.jsonl")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in (tmp_path / "load.jsonl").read_text().splitlines()]
    assert {record["arm"] for record in records} == {"ladder", "refuse-at-64"}
    for record in records:
        assert record_of(record).kind == "load"
        found, server = record["results"], record["server"]
        assert found["right_rows"] <= found["answered_rows"] == found["answered"]
        assert record["small_capacity"] > 0.0 and record["weights"]
        assert found["sent"] > 0 and found["lost"] == found["twice"] == found["failed"] == 0
        assert server.get("ok", 0) == found["answered"]
        assert found["answered"] + found["refused"] + found["timed_out"] == found["sent"]
