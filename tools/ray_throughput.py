"""Rows per second of a batch job on Ray: two actors against one, and against two plain commands.

    python tools/ray_throughput.py FOLDER texts.csv --repeats 7 --out experiments/ray/jobs.jsonl

The arms take turns: one actor, two actors, and two `predict` commands on half of the file each.
Ray is started once, before anything is timed; what a job does from its start to its file counts.
Two plain commands load the model themselves, as the actors do. Needs a machine that does nothing
else. One record per arm, with the paired ratios and their 95 % interval, is appended to --out.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apportion.study.ray_records  # noqa: F401 - makes its kinds known
from apportion.files import sha256
from apportion.serving.batch.ray_batch import predict_on_ray
from apportion.serving.batch.ray_cluster import connected
from apportion.serving.bench.timing import median_interval
from apportion.serving.runtime.session import Runtime
from apportion.study import records

ARMS = ("one actor", "two actors", "two commands")


def halves(texts: Path, home: Path) -> list[Path]:
    """The rows of a CSV file in two files, one after the other."""
    csv.field_size_limit(sys.maxsize)
    with texts.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = csv.reader(file)
    made = []
    for number, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
        path = home / f"half-{number}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *part])
        made.append(path)
    return made


def by_commands(folder: Path, files: list[Path], budget: float) -> None:
    """Two plain commands side by side, one thread each."""
    start = [sys.executable, "-m", "apportion.cli", "predict", str(folder)]
    ends = [
        subprocess.Popen(
            [*start, str(file), "-b", str(budget), "--out", str(file.with_suffix(".out.csv"))],
            stderr=subprocess.DEVNULL,
        )
        for file in files
    ]
    if any(end.wait() for end in ends):
        raise SystemExit("a plain command failed")


def labels(path: Path) -> list[str]:
    """The labels of a file of answers."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row["label"] for row in csv.DictReader(file)]


def main() -> None:
    """Times the arms in turns, and checks that all of them say the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path, help="a CSV file with a header")
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--subject", help="what the records call it; default: the texts' folder")
    parser.add_argument("--out", type=Path, help="a file of records to append to")
    asked = parser.parse_args()
    own = Runtime(asked.folder).identity
    identity = {name: own[name] for name in ("weights", "runtime", "precision")}
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as place, connected(cpus=2):
        home = Path(place)
        files = halves(asked.texts, home)
        for turn in range(asked.repeats + 1):  # the first is a warm-up
            for arm in ARMS:
                out = home / f"{arm}.csv"
                began = time.perf_counter()
                if arm == "two commands":
                    by_commands(asked.folder, files, asked.budget)
                else:
                    actors = ARMS.index(arm) + 1
                    done = predict_on_ray(
                        asked.folder, asked.texts, out=out, budget=asked.budget, actors=actors
                    )
                if turn:
                    seconds[arm].append(time.perf_counter() - began)
            print(f"turn {turn} of {asked.repeats}", file=sys.stderr)
        plain = [label for file in files for label in labels(file.with_suffix(".out.csv"))]
        same = all(labels(home / f"{arm}.csv") == plain for arm in ARMS[:2])
    for arm in ARMS:
        pairs = zip(seconds["two actors"], seconds[arm], strict=True)
        low, middle, high = _interval([other / two for two, other in pairs])
        facts = {
            "kind": "ray_throughput",
            "subject": asked.subject or asked.texts.resolve().parent.name,
            **identity,
            "arm": arm,
            "rows": done.rows,
            "texts": sha256(asked.texts)[:16],
            "budget": asked.budget,
            "rows_per_second": round(done.rows / statistics.median(seconds[arm]), 1),
            "two_actors_over_this": round(middle, 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "repeats": asked.repeats,
            "same_labels": same,
            **records.provenance(),
        }
        records.record_of(facts)  # complains of one that is not of its kind
        print(facts)
        if asked.out:
            records.append(asked.out, facts)


def _interval(ratios: list[float]) -> tuple[float, float, float]:
    low, high = median_interval(ratios)
    return low, statistics.median(ratios), high


if __name__ == "__main__":
    main()
