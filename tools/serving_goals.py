"""What the server has to reach, measured part by part: `python tools/serving_goals.py FOLDER DATA`.

FOLDER is an exported folder or a checkpoint, DATA a folder with test.csv. Every part adds records
to experiments/load/serving.jsonl; what has its records is left out, so a run that was stopped goes
on. `--scale 0.01` tries everything on a hundredth of the rows and turns. Parts, and about how long
each takes with ms for milliseconds of a row at the whole budget:

    overload   2 loads x 4 arms x 7 turns of 60 s             60 min
    accuracy   load 1.2 x (ladder and every level) x 7        70 min
    overhead   4 servers x 3 budgets, closed loops             15 min and what pip takes
    targets    8 targets x 3 lengths x idle and loaded         15 min
    chaos      10^5 rows                                       10 min
    drain      20 ends with three times the grace period        5 min
    fuzz       10^5 requests                                    5 min

The first four are timings: run them on an idle machine. The others are not.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import serving_chaos

import apportion.study.serving_records  # noqa: F401 - makes its kinds known
from apportion.serving.runtime.session import Runtime
from apportion.study import records

ROOT = Path(__file__).parents[1]
OUT = ROOT / "experiments" / "load" / "serving.jsonl"


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
        return sum(all(one.get(k) == v for k, v in facts.items()) for one in found)

    def note(self, kind: str, **fields: Any) -> None:
        """Adds a record, after it was checked to be of its kind."""
        line = {"kind": kind, **self.facts(), **fields, **records.provenance()}
        if kind == "fuzz":
            line = {k: v for k, v in line.items() if k not in ("runtime", "precision")}
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


def fuzz(job: Job) -> None:
    """10^5 spoilt requests to all dialects, in portions."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import fuzzing

    portion, count = 10_000, job.times(100_000)
    for seed in range(-(-count // portion)):
        if job.have("fuzz", seed=seed):
            continue
        sent = min(portion, count - seed * portion)
        statuses, wrong = asyncio.run(fuzzing.fuzz(sent, seed=seed))
        for one in wrong[:5]:
            print(one, file=sys.stderr)
        told = {str(status): n for status, n in sorted(statuses.items())}
        job.note("fuzz", requests=sent, seed=seed, statuses=told, wrong=len(wrong))


PARTS: dict[str, Callable[[Job], None]] = {"chaos": chaos, "drain": drain, "fuzz": fuzz}


def read_rows(file: Path) -> Iterator[tuple[str, str]]:
    """Labels and texts of a CSV file; all columns but the label are joined."""
    with file.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            label = row.pop("label")
            yield label, " ".join(row.values())


def main() -> None:
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
    asked = parser.parse_args()
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
