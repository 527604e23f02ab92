"""Kills parts of a batch job on Ray at random moments, lets it go on, and checks every row.

    python tools/ray_chaos.py FOLDER texts.csv --kills 20

Each round runs the job on a cluster of two nodes of this machine and kills -9 an actor, the driver
or the second node at a moment drawn from the time that an undisturbed job takes. A driver that was
killed is started again; a node that was killed is replaced. A round that found nothing to kill is
followed by another, until so many kills there were. The file must then be the one of the
undisturbed job: no row twice, none lost, the same answers. One record per round, which --out is
given as well, then a summary.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from ray_cluster import Nodes, running

import apportion.study.ray_records  # noqa: F401 - makes its kinds known
from apportion.files import remove
from apportion.serving.batch.ray_batch import job_folder
from apportion.serving.runtime.session import Runtime
from apportion.study import records

VICTIMS = ("actor", "driver", "node")


def start(model: Path, texts: Path, out: Path, cluster: Nodes, part: int) -> subprocess.Popen[str]:
    """A driver in a process of its own."""
    code = (
        "import sys; from apportion.serving.batch.ray_batch import predict_on_ray\n"
        "model, texts, out, address, part = sys.argv[1:]\n"
        "done = predict_on_ray(model, texts, out=out, address=address, part=int(part))\n"
        "print(done.rows, done.before)"
    )
    words = [model, texts, out, cluster.address, part]
    with (out.parent / "driver.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )


def end(driver: subprocess.Popen[str], patience: float) -> None:
    """Waits for a driver; one that hangs is killed, and its file is then not as it should be."""
    try:
        driver.wait(patience)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()


def below(process: subprocess.Popen[bytes], name: str) -> list[psutil.Process]:
    """Processes of a node whose command has a name."""
    found = []
    with suppress(psutil.Error):
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if name in " ".join(one.cmdline()):
                    found.append(one)
    return found


def kill(victim: str, driver: subprocess.Popen[str], cluster: Nodes, draw: random.Random) -> bool:
    """Kills an actor, the driver or the last node; false where there is none at this moment."""
    if victim == "driver":
        driver.kill()
        return True
    if victim == "actor":
        actors = [a for node in cluster.processes for a in below(node, "ray::MapWorker(MapBatches")]
        if not actors:
            return False
        draw.choice(actors).kill()
        return True
    node = cluster.processes.pop()
    for one in [*below(node, "raylet"), *below(node, "ray::")]:
        with suppress(psutil.Error):
            one.kill()
    node.kill()
    node.wait()
    return True


def read(out: Path) -> list[tuple[str, str]]:
    """Lines and labels."""
    with out.open(newline="", encoding="utf-8") as file:
        return [(row["line"], row["label"]) for row in csv.DictReader(file)]


def main() -> None:
    """All rounds; the exit code is 1 where a file was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--part", type=int, default=8192, help="bytes of text in a part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victims", nargs="+", default=VICTIMS, choices=VICTIMS)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds for a job to end")
    parser.add_argument("--subject", help="what the records call it; default: the texts' folder")
    parser.add_argument("--out", type=Path, help="a file of records to append to")
    asked = parser.parse_args()
    own = Runtime(asked.folder).identity
    same_in_all = {
        "kind": "ray_kill",
        "subject": asked.subject or asked.texts.resolve().parent.name,
        **{name: own[name] for name in ("weights", "runtime", "precision")},
        "seed": asked.seed,
    }
    draw = random.Random(asked.seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as home, running(2, cpus=2) as cluster:
        out = Path(home) / "labels.csv"
        began = time.monotonic()
        run = (asked.folder, asked.texts, out, cluster, asked.part)
        end(start(*run), asked.patience)
        if not out.exists():
            said = (out.parent / "driver.log").read_text()
            sys.exit(f"the undisturbed job failed:\n{said[-4000:]}")
        whole, seconds = read(out), time.monotonic() - began
        number = killed_so_far = 0
        while killed_so_far < asked.kills and number < 3 * asked.kills:
            number += 1
            out.unlink(missing_ok=True)
            remove(job_folder(out))
            victim = asked.victims[killed_so_far % len(asked.victims)]
            driver = start(*run)
            moment = draw.uniform(0, seconds)
            time.sleep(moment)
            killed = driver.poll() is None and kill(victim, driver, cluster, draw)
            killed_so_far += killed
            if victim == "driver" and killed:
                driver.wait()
                driver = start(*run)
            end(driver, asked.patience)
            while len(cluster.processes) < 2:
                cluster.add()
            found = read(out) if out.exists() else []
            same = found == whole
            wrong += not same
            record = {
                **same_in_all,
                "round": number,
                "victim": victim,
                "moment": round(moment, 2),
                "undisturbed": round(seconds, 2),
                "killed": killed,
                "rows": len(found),
                "same": same,
                **records.provenance(),
            }
            records.record_of(record)  # complains of one that is not of its kind
            print(json.dumps(record), flush=True)
            if asked.out:
                records.append(asked.out, record)
    print(json.dumps({"rounds": number, "kills": killed_so_far, "wrong": wrong}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
