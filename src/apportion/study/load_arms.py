"""Arms of a load test: servers of one model that differ in their policy, on the same arrivals.

Each arm is a real server of its own on loopback; they take turns. Capacity and deadline are
measured in the same run: the deadline is a multiple of a request's median time at the whole budget.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apportion.serving.open_loop import Shot, fire, send_times, summarise
from apportion.study.records import provenance

ARMS = ("ladder", "slackfit", "static-full", "static-small", "refuse-at-512")
_TIERS = {"low-cost": 0.25, "balanced": 0.5, "high-quality": 1.0}
_START = 180.0  # seconds that a server may take to start


@dataclass(frozen=True, kw_only=True)
class LoadRecord:
    """One turn of one arm: how many requests, in time or not, and what they were answered at."""

    arm: str
    trace: str
    turn: int
    seed: int
    load: float  # multiple of what the whole budget carries
    rows: int  # of a request
    rate: float  # requests a second
    seconds: float
    capacity: float  # rows a second at the whole budget, measured before
    deadline_ms: float
    mixed: bool  # tiers at random; or all at the dearest
    results: dict[str, Any]  # counts, attainment and latencies, as `open_loop.summarise` has them
    server: dict[str, float]  # rows by outcome, as the server counted them
    provenance: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The record as its line has it."""
        return {"kind": "load", **asdict(self)}


@dataclass(frozen=True)
class LoadPlan:
    """What is run."""

    load: float = 2.0
    trace: str = "gamma:8"
    seconds: float = 20.0
    turns: int = 1
    rows: int = 1
    patience: float = 4.0  # deadline over the whole budget's median
    mixed: bool = True
    seed: int = 0
    arms: tuple[str, ...] = ("ladder", "static-full", "static-small", "refuse-at-512")

    def __post_init__(self) -> None:
        for name in ("load", "seconds", "turns", "rows", "patience"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is a number above 0, not {getattr(self, name)!r}")
        if set(self.arms) <= {"static-small"}:
            raise ValueError("one arm at least runs the whole budget: what it carries is measured")
        for arm in self.arms:
            if arm not in ARMS and not re.fullmatch(r"refuse-at-[1-9]\d{0,6}", arm):
                raise ValueError(f"there is no arm {arm!r}; there are {', '.join(ARMS)}")


def run_load(
    folder: Path,
    texts: Sequence[str],
    plan: LoadPlan,
    *,
    tell: Callable[[str], None] = lambda said: None,
) -> Iterator[LoadRecord]:
    """Starts a server per arm and lets them take turns; a record as each turn ends."""
    if not texts:
        raise ValueError("there is no text to send")
    draw = random.Random(plan.seed)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {arm: stack.enter_context(_server(folder, arm, home)) for arm in plan.arms}
        for turn in range(plan.turns):
            arms = list(plan.arms)
            draw.shuffle(arms)
            whole = next(arm for arm in arms if arm != "static-small")
            capacity, median = _capacity(urls[whole], texts, plan.rows)
            deadline, rate = plan.patience * median, plan.load * capacity / plan.rows
            times = send_times(plan.trace, rate=rate, seconds=plan.seconds, seed=plan.seed + turn)
            tell(f"turn {turn + 1}: {capacity:.0f} rows a second, deadline {deadline:.0f} ms")
            for arm in arms:
                shots = _shots(arm, times, texts, plan, deadline, turn)
                before = _counted(urls[arm])
                hits = asyncio.run(fire(urls[arm], shots))
                after = _counted(urls[arm])
                yield LoadRecord(
                    arm=arm,
                    trace=Path(plan.trace).name,
                    turn=turn,
                    seed=plan.seed,
                    load=plan.load,
                    rows=plan.rows,
                    rate=rate,
                    seconds=plan.seconds,
                    capacity=capacity,
                    deadline_ms=deadline,
                    mixed=plan.mixed,
                    results=summarise(hits),
                    server={name: after[name] - before.get(name, 0.0) for name in after},
                    provenance=provenance(),
                )


def arm_config(arm: str, levels: Sequence[float]) -> str:
    """The configuration of an arm, as TOML."""
    lines, small = ["[model]", 'name = "model"', "[machine]"], levels[0]
    if arm.startswith("refuse-at-"):
        lines += [f"max_rows = {arm.removeprefix('refuse-at-')}", "max_wait_s = 600.0"]
    elif arm.startswith("static"):
        lines += ["max_wait_s = 600.0"]  # it queues
    lines += ["[policy]", f'name = "{arm}"' if arm in ("ladder", "slackfit") else 'name = "ladder"']
    for place, (tier, most) in enumerate(_TIERS.items()):
        high, low = max(most, small), small
        if arm == "static-small":
            high = low
        elif arm not in ("ladder", "slackfit"):
            high = low = 1.0
        lines += ["[[tier]]", f'name = "{tier}"', f"max_budget = {high}", f"min_budget = {low}"]
        lines += [f"weight = {8.0**place}"]
    return "\n".join([*lines, ""])


def _shots(
    arm: str,
    times: Sequence[float],
    texts: Sequence[str],
    plan: LoadPlan,
    deadline: float,
    turn: int,
) -> list[Shot]:
    """The same texts and tiers for every arm."""
    draw, shots = random.Random(plan.seed + turn), []
    for n, moment in enumerate(times):
        tier = draw.choice(list(_TIERS)) if plan.mixed else "high-quality"
        body = {
            "input": [draw.choice(texts) for _ in range(plan.rows)],
            "tier": tier,
            "target_ms": deadline,
        }
        shots.append(Shot(f"{arm}-{turn}-{n}", moment, body, deadline))
    return shots


def _capacity(
    url: str, texts: Sequence[str], rows: int, seconds: float = 3.0
) -> tuple[float, float]:
    """Rows a second, and milliseconds a request, of one client that asks for the whole budget.

    The client waits for each answer, so the server is idle when it asks and lowers nothing.
    """
    took: list[float] = []
    end = time.perf_counter() + seconds
    draw = random.Random(0)
    while time.perf_counter() < end or len(took) < 5:
        body = {"input": [draw.choice(texts) for _ in range(rows)], "tier": "high-quality"}
        started = time.perf_counter()
        answer = _post(url, {**body, "target_ms": 60_000})
        took.append(time.perf_counter() - started)
        assert answer["apportion"]["budget"] == 1.0
    median = statistics.median(took)
    return rows / median, 1000 * median


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        f"{url}/v1/classify", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        found: dict[str, Any] = json.loads(reply.read())
    return found


def _counted(url: str) -> dict[str, float]:
    """Rows by outcome, from the server's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    found: dict[str, float] = {}
    for outcome, value in re.findall(
        r'^apportion_rows_total\{outcome="(\w+)",tier="[^"]*"\} (\S+)$', text, flags=re.MULTILINE
    ):
        found[outcome] = found.get(outcome, 0.0) + float(value)
    return found


@contextmanager
def _server(folder: Path, arm: str, home: Path) -> Iterator[str]:
    """The address of a server of an arm, which ends with the block."""
    levels = _levels(folder)
    config = home / f"{arm}.toml"
    config.write_text(arm_config(arm, levels), encoding="utf-8")
    command = [sys.executable, "-m", "apportion.cli", "serve", str(folder)]
    command += ["--config", str(config), "--port", "0", "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=said.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        yield _address(process, said)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(5)
        process.stderr.close()


def _address(process: subprocess.Popen[str], said: Sequence[str]) -> str:
    end = time.monotonic() + _START
    while time.monotonic() < end and process.poll() is None:
        for line in list(said):
            if found := re.search(r"serving .* at (http://\S+:\d+)/", line):
                return found[1]
        time.sleep(0.05)
    last = said[-1].strip() if said else "it said nothing"
    raise ValueError(f"the server did not start: {last}")


def _levels(folder: Path) -> tuple[float, ...]:
    from apportion.serving.runtime.session import Runtime

    return Runtime(folder).levels
