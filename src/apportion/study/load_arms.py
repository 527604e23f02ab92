"""Arms of a load test: servers of one model that differ in their policy, on the same arrivals.

Each arm is a real server of its own on loopback; they take turns. Capacities and deadline are
measured in the same run: the deadline is a multiple of a request's median time at the whole budget.
"""

from __future__ import annotations

import csv
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from apportion.serving.runtime.session import Runtime
from apportion.serving.server.open_loop import Shot, fire, saturate, send_times, summarise
from apportion.study.records import provenance
from apportion.study.server_process import ServerProcess
from apportion.study.serving_records import LoadRecord

ARMS = ("ladder", "slackfit", "static-full", "static-small", "static-LEVEL", "refuse-at-512")
_ARM = re.compile(
    r"ladder|slackfit|static-full|static-small|static-(0\.\d+|1)|refuse-at-[1-9]\d{0,6}"
)
_TIERS = {"low-cost": 0.25, "balanced": 0.5, "high-quality": 1.0}
_NO_OTHER_LIMIT = ("max_wait_s = 600.0", "max_tokens = 100000000")
_CLIENTS = 8  # that ask at once when a server is saturated

Labelled = tuple[str, str | None]  # a text, and what is right where somebody knows


@dataclass(frozen=True)
class LoadPlan:
    """What is run."""

    load: float = 2.0
    of: str = "whole"  # or small: the budget that load is a multiple of
    trace: str = "gamma:8"
    seconds: float = 20.0
    turns: int = 1
    rows: int = 1
    patience: float = 4.0  # deadline over a request's median at the whole budget
    mixed: bool = True
    seed: int = 0
    arms: tuple[str, ...] = ("ladder", "static-full", "static-small", "refuse-at-512")
    # Arms that are the ladder in a server of another kind, and how that is started.
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("load", "seconds", "turns", "rows", "patience"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is a number above 0, not {getattr(self, name)!r}")
        if self.of not in ("whole", "small"):
            raise ValueError(f"load is a multiple of whole or small, not of {self.of!r}")
        for arm in self.arms:
            if arm not in self.commands and not _ARM.fullmatch(arm):
                raise ValueError(f"there is no arm {arm!r}; there are {', '.join(ARMS)}")


def read_texts(file: Path) -> list[Labelled]:
    """Texts to send: one per line; or those of a CSV file with the columns label and text."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    with file.open(encoding="utf-8", newline="") as stream:
        if file.suffix != ".csv":
            return [(line.strip(), None) for line in stream if line.strip()]
        rows = csv.DictReader(stream)
        if not {"label", "text"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{file} has no columns label and text")
        return [(row["text"], row["label"]) for row in rows]


def run_load(
    folder: Path,
    texts: Sequence[Labelled],
    plan: LoadPlan,
    *,
    subject: str = "",
    first: int = 0,
    tell: Callable[[str], None] = lambda said: None,
) -> Iterator[LoadRecord]:
    """Starts a server per arm and lets them take turns; a record as each turn ends.

    Two more servers, one of the whole and one of the smallest budget, say what is carried.
    """
    if not texts:
        raise ValueError("there is no text to send")
    runtime = Runtime(folder)
    levels, identity = runtime.levels, runtime.identity
    del runtime
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {}
        for arm in dict.fromkeys((*plan.arms, "static-full", "static-small")):
            config = home / f"{arm}.toml"
            command = plan.commands.get(arm, ())
            text = arm_config("ladder" if command else arm, levels)
            config.write_text(text, encoding="utf-8")
            server = ServerProcess(folder, config, command=command, quiet=not command)
            servers[arm] = stack.enter_context(server)
        for turn in range(first, first + plan.turns):
            arms = list(plan.arms)
            random.Random(plan.seed + turn).shuffle(arms)
            median = _alone(servers["static-full"], texts, plan.rows)
            whole = _carried(servers["static-full"], texts, plan.rows)
            small = _carried(servers["static-small"], texts, plan.rows)
            deadline = plan.patience * median
            rate = plan.load * (whole if plan.of == "whole" else small) / plan.rows
            times = send_times(plan.trace, rate=rate, seconds=plan.seconds, seed=plan.seed + turn)
            tell(
                f"turn {turn + 1}: {whole:.0f} rows a second at the whole budget, {small:.0f} at "
                f"the smallest, deadline {deadline:.0f} ms"
            )
            for arm in arms:
                shots = _shots(arm, times, texts, plan, deadline, turn)
                before = servers[arm].counted()
                hits = fire(servers[arm].url, shots)
                after = servers[arm].counted()
                yield LoadRecord(
                    subject=subject,
                    weights=identity["weights"],
                    runtime=identity["runtime"],
                    precision=identity["precision"],
                    arm=arm,
                    trace=Path(plan.trace).name,
                    turn=turn,
                    seed=plan.seed,
                    load=plan.load,
                    of=plan.of,
                    rows=plan.rows,
                    rate=rate,
                    seconds=plan.seconds,
                    capacity=whole,
                    small_capacity=small,
                    deadline_ms=deadline,
                    mixed=plan.mixed,
                    results=summarise(hits),
                    server={name: after[name] - before.get(name, 0.0) for name in after},
                    **provenance(),
                )


def arm_config(arm: str, levels: Sequence[float]) -> str:
    """The configuration of an arm, as TOML."""
    lines, small = ["[model]", 'name = "model"', "[machine]"], levels[0]
    if arm.startswith("refuse-at-"):
        lines += [f"max_rows = {arm.removeprefix('refuse-at-')}", *_NO_OTHER_LIMIT]
    elif arm.startswith("static"):
        lines += ["max_rows = 1000000", *_NO_OTHER_LIMIT]  # it queues
    lines += ["[policy]", f'name = "{arm}"' if arm in ("ladder", "slackfit") else 'name = "ladder"']
    for place, (tier, most) in enumerate(_TIERS.items()):
        high, low = max(most, small), small
        if arm == "static-small":
            high = low
        elif arm not in ("ladder", "slackfit"):
            named = arm.removeprefix("static-")
            high = low = 1.0 if not named[0].isdigit() else float(named)
        lines += ["[[tier]]", f'name = "{tier}"', f"max_budget = {high}", f"min_budget = {low}"]
        lines += [f"weight = {8.0**place}"]
    return "\n".join([*lines, ""])


def _shots(
    arm: str,
    times: Sequence[float],
    texts: Sequence[Labelled],
    plan: LoadPlan,
    deadline: float,
    turn: int,
) -> list[Shot]:
    """The same texts and tiers for every arm."""
    draw, shots = random.Random(plan.seed + turn), []
    for n, moment in enumerate(times):
        tier = draw.choice(list(_TIERS)) if plan.mixed else "high-quality"
        chosen = [draw.choice(texts) for _ in range(plan.rows)]
        body = {"input": [text for text, _ in chosen], "tier": tier, "target_ms": deadline}
        labels = tuple(label for _, label in chosen if label is not None)
        shots.append(Shot(f"{arm}-{turn}-{n}", moment, body, deadline, labels))
    return shots


def _alone(
    server: ServerProcess, texts: Sequence[Labelled], rows: int, seconds: float = 3.0
) -> float:
    """Milliseconds of a request of so many rows at the whole budget, median."""
    took: list[float] = []
    draw, end = random.Random(0), time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < 5:
        chosen = [draw.choice(texts)[0] for _ in range(rows)]
        body = {"input": chosen, "tier": "high-quality", "target_ms": 60_000}
        started = time.perf_counter()
        answer = server.ask(body)
        took.append(time.perf_counter() - started)
        assert answer["apportion"]["budget"] == 1.0
    return 1000 * statistics.median(took)


def _carried(
    server: ServerProcess, texts: Sequence[Labelled], rows: int, seconds: float = 4.0
) -> float:
    """Rows a second that a server carries when it is saturated by requests of so many rows."""
    draw = random.Random(1)
    body = {"tier": "high-quality", "target_ms": 60_000}
    many = [{**body, "input": [draw.choice(texts)[0] for _ in range(rows)]} for _ in range(256)]
    return saturate(server.url, many, clients=_CLIENTS, seconds=seconds)
