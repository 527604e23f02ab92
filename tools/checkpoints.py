"""Makes the checkpoints that examples and measurements need: the first seed of each study.

`make checkpoints DATA=FOLDER`, where FOLDER has the folders ag_news, dbpedia14 and imdb. A set that
is not there is left out, which is said; what is there already is not trained again, and a killed
run goes on where it was. Nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STUDIES = {"ag_news": "nested-ag-news", "dbpedia14": "nested-dbpedia14", "imdb": "nested-imdb"}
METHODS = ("dense", "nested")
ROOT = Path(__file__).parents[1]


def make(data: Path, runs: Path, seed: int | None) -> None:
    """The checkpoints of one data set, under names that do not change: checkpoints/SET-METHOD."""
    import torch
    from rich.console import Console

    from apportion.elastic.checkpoint import has_checkpoint, save
    from apportion.study.experiment import read_experiment
    from apportion.study.production import produce
    from apportion.training.progress import training_bar

    torch.set_num_threads(1)
    study = STUDIES[data.name]
    plan = read_experiment(ROOT / "experiments" / f"{study}.toml", data)
    wanted = plan.seeds[0] if seed is None else seed
    task = None
    for method in METHODS:
        folder = runs / "checkpoints" / f"{data.name}-{method}"
        if has_checkpoint(folder):
            continue
        (stage,) = [one for one in plan.stages_of(method) if one.seed == wanted]
        task = task or stage.build_task()
        with training_bar(Console(stderr=True)) as bar:
            save(produce(stage, runs / study, progress=bar, task=task), folder)
        print(folder, flush=True)


def main() -> None:
    """All sets that are there, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the folder of the data sets, or one of them")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--seed", type=int, help="another seed of the studies than their first")
    asked = parser.parse_args()
    if asked.data.name in STUDIES:
        make(asked.data, asked.runs, asked.seed)
        return
    there = [name for name in STUDIES if (asked.data / name / "train.csv").exists()]
    for name in sorted(set(STUDIES) - set(there)):
        print(f"{asked.data / name} is not there: left out", file=sys.stderr)
    started = time.monotonic()

    def run(name: str) -> int:
        command = [sys.executable, __file__, str(asked.data / name), "--runs", str(asked.runs)]
        command += [] if asked.seed is None else ["--seed", str(asked.seed)]
        return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode

    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(run, there))
    print(f"{(time.monotonic() - started) / 60:.0f} minutes", file=sys.stderr)
    if not there or any(codes):
        sys.exit(1)


if __name__ == "__main__":
    main()
