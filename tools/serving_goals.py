"""What the server has to reach, measured part by part: `python tools/serving_goals.py FOLDER DATA`.

FOLDER is an exported folder or a checkpoint, DATA a folder with test.csv. Every part adds records
to experiments/load/serving.jsonl; what has its records is left out, so a run that was stopped goes
on. `--scale 0.01` tries everything on a hundredth of the rows and turns, `--seconds 5` with short
turns. Parts, and about how long each takes on two idle cores:

    overload   2 loads x 4 arms x 7 turns of 60 s              60 min
    accuracy   load 1.2 x (ladder and every level) x 7 turns   60 min
    overhead   4 servers x 2 budgets x 7 turns                  7 min and what pip takes
    targets    8 targets x 3 lengths, alone and loaded         10 min
    chaos      10^5 rows                                       15 min
    drain      20 ends with three times the grace period        6 min
    fuzz       10^5 requests                                    3 min
    abandoned  half of the clients leave, 7 x 3 x 3,000 rows    8 min
    ray        the same arrivals through Ray Serve, 7 turns     20 min

The first four and the last are timings: run them on an idle machine. The others are not.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import peer_servers
import serving_chaos

import apportion.study.serving_records  # noqa: F401 - makes its kinds known
from apportion.serving.bench.timing import median_interval
from apportion.serving.guarantees.cascade import ask
from apportion.serving.runtime.session import Runtime
from apportion.serving.server.open_loop import (
    LATE_CLIENT,
    Hit,
    Shot,
    fire,
    send_times,
    summarise,
)
from apportion.study import records
from apportion.study.load_arms import LoadPlan, run_load
from apportion.study.server_process import ServerProcess

ROOT = Path(__file__).parents[1]
OUT = ROOT / "experiments" / "load" / "serving.jsonl"


# What spoilt requests are sent to: no weights are needed to read bodies.
FORMULA = {"subject": "a formula in place of a model", "weights": ""}


@dataclass(frozen=True)
class Job:
    """What is measured, on what, and how much of it."""

    folder: Path
    subject: str
    texts: list[str]
    labels: list[str]
    scale: float
    seconds: float
    out: Path
    environments: Path

    def times(self, count: int) -> int:
        """So many, by the scale; one at least."""
        return max(1, round(self.scale * count))

    def facts(self) -> dict[str, Any]:
        """What every record says of the folder."""
        identity = Runtime(self.folder).identity
        return {
            "subject": self.subject,
            "weights": identity["weights"],
            "runtime": identity["runtime"],
            "precision": identity["precision"],
        }

    def have(self, kind: str, **facts: Any) -> int:
        """How many records of a kind there are that say so."""
        facts = {"subject": self.subject, **facts}
        found = [one for one in records.read(self.out) if one.get("kind") == kind]
        # What a late client measured is measured again.
        found = [one for one in found if not one.get("results", {}).get("void")]
        found = [one for one in found if one.get("client_p99_ms", 0.0) <= 1000 * LATE_CLIENT]
        return sum(all(one.get(k) == v for k, v in facts.items()) for one in found)

    def note(self, kind: str, **fields: Any) -> None:
        """Adds a record, after it was checked to be of its kind."""
        facts = FORMULA if kind == "fuzz" else self.facts()
        line = {"kind": kind, **facts, **fields, **records.provenance()}
        records.append(self.out, records.record_of(line).to_dict())
        shown = {k: v for k, v in fields.items() if not isinstance(v, dict | list)}
        print(kind, shown, flush=True)


def chaos(job: Job) -> None:
    """10^5 rows, a fifth of the clients gone, ten deaths, three swaps, SIGTERM."""
    rows = job.times(100_000)
    if not job.have("chaos"):
        short = sorted(job.texts[:2000], key=len)[:600]
        fields = serving_chaos.chaos(job.folder, short, rows=rows, deaths=10, swaps=3, seed=1)
        job.note("chaos", **asyncio.run(fields))


def drain(job: Job) -> None:
    """20 times SIGTERM with three times the grace period queued."""
    for turn in range(job.times(20)):
        if not job.have("drain", turn=turn):
            fields = serving_chaos.drained(job.folder, job.texts[:500], grace=5.0, multiple=3.0)
            job.note("drain", turn=turn, **fields)


def abandoned(job: Job) -> None:
    """Half of the clients leave: what is computed for them, and whether the others notice."""
    for turn in range(job.times(7)):
        if not job.have("abandoned", turn=turn):
            short = sorted(job.texts[:2000], key=len)[:600]
            rows = max(200, job.times(3000))
            fields = serving_chaos.abandoned(job.folder, short, rows=rows, seed=turn)
            job.note("abandoned", turn=turn, **asyncio.run(fields))


def ray(job: Job) -> None:
    """The same arrivals at a server by itself and through Ray Serve, with one replica."""
    command = (sys.executable, str(ROOT / "tools" / "ray_serve.py"))
    loaded(
        job,
        LoadPlan(
            load=1.2,
            seconds=job.seconds,
            turns=job.times(7),
            rows=rows_of(job),
            arms=("ladder", "ray-serve"),
            commands={"ray-serve": command},
        ),
    )


def fuzz(job: Job) -> None:
    """10^5 spoilt requests to all dialects, in portions."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import fuzzing

    portion, count = 10_000, job.times(100_000)
    for seed in range(-(-count // portion)):
        if job.have("fuzz", seed=seed, subject=FORMULA["subject"]):
            continue
        sent = min(portion, count - seed * portion)
        statuses, wrong = asyncio.run(fuzzing.fuzz(sent, seed=seed))
        for one in wrong[:5]:
            print(one, file=sys.stderr)
        told = {str(status): n for status, n in sorted(statuses.items())}
        job.note("fuzz", requests=sent, seed=seed, statuses=told, wrong=len(wrong))


def rows_of(job: Job) -> int:
    """Rows of a request: of int8, four, or the client would fill the second core."""
    return 4 if job.facts()["precision"] == "int8" else 1


def loaded(job: Job, plan: LoadPlan) -> None:
    """The turns of a plan that are missing; arms of a turn that was stopped run again."""
    asked = {"load": plan.load, "of": plan.of, "trace": plan.trace, "mixed": plan.mixed}
    first = 0
    while all(job.have("load", turn=first, arm=arm, **asked) for arm in plan.arms):
        first += 1
    if first >= plan.turns:
        return
    texts = list(zip(job.texts, job.labels, strict=True))
    plan = replace(plan, turns=plan.turns - first)

    def tell(said: str) -> None:
        print(said, file=sys.stderr, flush=True)

    for record in run_load(job.folder, texts, plan, subject=job.subject, first=first, tell=tell):
        records.append(job.out, record.to_dict())
        told = record.results
        share = told["right_rows"] / max(told["answered_rows"], 1)
        print(
            f"load {record.load:g} of {record.of}, {record.arm}: {told['attainment']:.4f} in time, "
            f"{share:.4f} right, {told['refused']} refused" + " void" * told["void"],
            flush=True,
        )


def overload(job: Job) -> None:
    """32 % and 63 % of what the smallest budget carries, CV² 8: the ladder beside three others."""
    arms = ("ladder", "static-full", "static-small", "refuse-at-512")
    for load in (0.32, 0.63):
        loaded(
            job,
            LoadPlan(
                load=load,
                of="small",
                seconds=job.seconds,
                turns=job.times(7),
                rows=rows_of(job),
                arms=arms,
            ),
        )


def accuracy(job: Job) -> None:
    """1.2 times what the whole budget carries: the ladder beside every level, all in one tier."""
    levels = Runtime(job.folder).levels
    loaded(
        job,
        LoadPlan(
            load=1.2,
            seconds=job.seconds,
            turns=job.times(7),
            rows=rows_of(job),
            mixed=False,
            arms=("ladder", *(f"static-{level:g}" for level in levels)),
        ),
    )


def overhead(job: Job) -> None:
    """A lone request over the bare call, and saturated rows a second, beside other servers."""
    levels = Runtime(job.folder).levels
    for budget in (1.0, levels[0]):
        if not job.have("overhead", budget=budget, arm="apportion"):
            for fields in compare_servers(job, budget):
                job.note("overhead", budget=budget, **fields)


def compare_servers(job: Job, budget: float) -> list[dict[str, Any]]:
    """The fields of each server's record; all of them run, and take turns."""
    job.environments.mkdir(parents=True, exist_ok=True)
    turns, rows, clients = max(2, job.times(7)), rows_of(job), 32
    seconds, count = min(job.seconds, 5.0), max(10, job.times(50))
    runtime = Runtime(job.folder, threads=1)
    texts = job.texts[: max(32, job.times(1024))]
    encoded = runtime.tokenizer.encode(texts)

    def call(text: str) -> str:
        inputs = runtime.tokenizer.pad_arrays(runtime.tokenizer.encode([text]))
        return runtime.classes[int(runtime(**inputs, budget=budget)[0].argmax())]

    wanted = [call(text) for text in texts[:8]]
    took: dict[str, list[float]] = {}
    carried: dict[str, list[float]] = {}
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (home / "tiers.toml").write_text(
            "[machine]\nthreads = 1\nworkers = 1\nmax_wait_s = 600.0\n"
            "[limits]\ntimeout_ms = 600000.0\n"
            '[[tier]]\nname = "all"\nmax_budget = 1.0\n',
            encoding="utf-8",
        )
        servers = {
            "apportion": stack.enter_context(
                peer_servers.own(job.folder, home / "tiers.toml", budget=budget)
            )
        }
        for name in peer_servers.PEERS:
            servers[name] = stack.enter_context(
                peer_servers.peer(name, job.folder, budget=budget, home=job.environments)
            )
        for name, server in servers.items():
            if server.labels(server.connect(), texts[:8]) != wanted:
                print(f"{name} answers otherwise than the bare call", file=sys.stderr)
            server.rest()
        # Lone requests first: a server that batches by what it saw keeps some of the load in mind.
        for turn in range(turns):
            some = [texts[(turn * count + k) % len(texts)] for k in range(count)]
            for name in ("bare", *servers)[:: -1 if turn % 2 else 1]:
                times = _one_by_one(call, some) if name == "bare" else []
                if name != "bare":
                    with servers[name].awake():
                        times = peer_servers.alone(servers[name], some)
                took.setdefault(name, []).append(statistics.median(times))
        for turn in range(turns):
            for name in ("bare", *servers)[:: -1 if turn % 2 else 1]:
                if name == "bare":
                    started = time.perf_counter()
                    ask(runtime, encoded, level=budget, batch=32)
                    rate = len(encoded) / (time.perf_counter() - started)
                else:
                    with servers[name].awake():
                        rate = peer_servers.saturated(
                            servers[name], texts, clients=clients, rows=rows, seconds=seconds
                        )
                carried.setdefault(name, []).append(rate)
        versions = {"bare": runtime.identity["runtime"]}
        versions |= {name: server.version for name, server in servers.items()}
    made = []
    for name in ("bare", *servers):
        over = [mine - bare for mine, bare in zip(took[name], took["bare"], strict=True)]
        share = [mine / bare for mine, bare in zip(carried[name], carried["bare"], strict=True)]
        (low_ms, high_ms), (low, high) = median_interval(over), median_interval(share)
        made.append(
            {
                "arm": name,
                "version": versions[name],
                "turns": turns,
                "alone_ms": round(statistics.median(took[name]), 4),
                "over_ms": round(statistics.median(over), 4),
                "low_ms": round(low_ms, 4),
                "high_ms": round(high_ms, 4),
                "clients": clients,
                "rows": rows,
                "rows_per_second": round(statistics.median(carried[name]), 2),
                "share": round(statistics.median(share), 4),
                "low": round(low, 4),
                "high": round(high, 4),
            }
        )
    return sorted(made, key=lambda one: one["arm"] == "apportion")  # ours last: then all are there


def _one_by_one(call: Callable[[str], str], texts: Sequence[str]) -> list[float]:
    """Milliseconds of each call."""
    times = []
    for text in texts:
        started = time.perf_counter()
        call(text)
        times.append(1000 * (time.perf_counter() - started))
    return times


def targets(job: Job) -> None:
    """Eight targets for short, usual and long texts, alone and at 0.8 of the whole's load."""
    runtime = Runtime(job.folder, threads=1)
    tokens = [len(one) for one in runtime.tokenizer.encode(job.texts[:3000])]
    levels = runtime.levels
    del runtime
    order = sorted(range(len(tokens)), key=tokens.__getitem__)
    tenth = max(len(order) // 10, 1)
    groups = [order[:tenth], order[4 * tenth : 5 * tenth or 1], order[-tenth:]]
    with tempfile.TemporaryDirectory() as home:
        config = Path(home, "tiers.toml")
        config.write_text(
            '[machine]\nthreads = 1\n[[tier]]\nname = "all"\nmax_budget = 1.0\n',
            encoding="utf-8",
        )
        with ServerProcess(job.folder, config) as server:
            for places in groups:
                longest = max(tokens[n] for n in places)
                if job.have("target", tokens=longest) < 16:
                    tokens_of = {job.texts[n]: tokens[n] for n in places}
                    try_targets(job, server, tokens_of, levels[0])


def try_targets(job: Job, server: ServerProcess, tokens: Mapping[str, int], small: float) -> None:
    """All targets of texts of about one length."""
    texts, longest = list(tokens), max(tokens.values())
    fastest, whole = (_median_ms(server, texts, budget) for budget in (small, 1.0))
    first, last = 1.2 * fastest, 1.5 * whole
    for load in (0.0, 0.8):
        for place in range(8):
            target = first * (last / first) ** (place / 7)
            count = max(10, job.times(200))
            # Alone: so far apart that nobody waits for another.
            rate = load * 1000 / whole if load else 1000 / (3.0 * whole)
            seconds = min(count / rate, 600.0)
            times = send_times(
                "poisson" if load else "gamma:0.0001", rate=rate, seconds=seconds, seed=place
            )
            draw = random.Random(place)
            shots = [
                Shot(f"t{n}", at, {"input": [draw.choice(texts)], "target_ms": target}, target)
                for n, at in enumerate(times)
            ]
            hits = fire(server.url, shots)
            found = summarise(hits)
            job.note(
                "target",
                load=load,
                target_ms=round(target, 3),
                fastest_ms=round(fastest, 3),
                tokens=longest,
                requests=found["sent"],
                p50_ms=round(found["p50_ms"], 3),
                p95_ms=round(found["p95_ms"], 3),
                within=round(found["attainment"], 4),
                mean_budget=round(
                    statistics.fmean([h.told["budget"] for h in hits if h.status == 200]), 4
                ),
                # Alone, each request is a call by itself.
                forecast_off=None if load else forecast_off(server, hits, tokens),
                client_p99_ms=round(found["client_p99_ms"], 3),
            )


def forecast_off(server: ServerProcess, hits: Sequence[Hit], tokens: Mapping[str, int]) -> float:
    """How far calls were from what the server foretells of them, a median."""
    foretold: dict[int, dict[float, float]] = {}
    off = []
    for hit in hits:
        if hit.status == 200:
            count = tokens[hit.shot.body["input"][0]]
            if count not in foretold:
                told = server.ask(path=f"/v1/forecast?tokens={count}")
                foretold[count] = {one["budget"]: one["ms"] for one in told["levels"]}
            expected = foretold[count][hit.told["budget"]]
            off.append(abs(expected - hit.told["model_ms"]) / hit.told["model_ms"])
    return round(statistics.median(off), 4)


def _median_ms(server: ServerProcess, texts: list[str], budget: float) -> float:
    took = []
    for n in range(40):
        started = time.perf_counter()
        server.ask({"input": texts[n % len(texts)], "budget": budget, "target_ms": 60_000})
        took.append(1000 * (time.perf_counter() - started))
    return statistics.median(took)


PARTS: dict[str, Callable[[Job], None]] = {
    "overload": overload,
    "accuracy": accuracy,
    "overhead": overhead,
    "targets": targets,
    "chaos": chaos,
    "drain": drain,
    "fuzz": fuzz,
    "abandoned": abandoned,
    "ray": ray,
}


def read_rows(file: Path) -> Iterator[tuple[str, str]]:
    """Labels and texts of a CSV file; all columns but the label are joined."""
    with file.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            label = row.pop("label")
            yield label, " ".join(row.values())


def main(words: Sequence[str] | None = None) -> None:
    """All parts that are asked for, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path, help="a folder with test.csv")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--subject", help="what the records call it; default: the data's name")
    parser.add_argument("--scale", type=float, default=1.0, help="share of rows and turns")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a turn under load")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--environments", type=Path, default=ROOT / "runs" / "peers", help="for venvs of peers"
    )
    asked = parser.parse_args(words)
    labels, texts = zip(*read_rows(asked.data / "test.csv"), strict=True)
    precision = Runtime(asked.folder).identity["precision"]
    subject = asked.subject or f"{asked.data.resolve().name}, {precision}"
    job = Job(
        asked.folder,
        subject,
        list(texts),
        list(labels),
        asked.scale,
        asked.seconds,
        asked.out,
        asked.environments,
    )
    for name in asked.parts:
        started = time.monotonic()
        PARTS[name](job)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
