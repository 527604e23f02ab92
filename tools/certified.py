"""Certified speed on real data: `python tools/certified.py DATA` on an idle machine.

DATA has the folders ag_news, dbpedia14 and imdb; the checkpoints are those of `make checkpoints`.
Every data set's test texts are split five times into rows that tune, rows that test the thresholds
and rows that say what is true; each split is certified at 1 % and 2 %, for the nested checkpoint
and for one whose budgets are its first layers (early exit by depth), run by torch and as exported
files. Each measured point is one record in experiments/certificates/certified.jsonl; a run that was
stopped goes on where it was. `--untimed` only writes the exported files and asks every level for
its answers: that part takes most of the time, and does not mind a busy machine.

`--train-depth` first makes the checkpoints of the second method: the same recipe, rows and teacher,
with units in the order of their layers. That takes as long as training the nested ones.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import apportion.study.certificate_records  # noqa: F401 - makes its kinds known
from apportion.data.rows import Row, open_text, plain, read_csv
from apportion.elastic.checkpoint import load
from apportion.files import write_bytes
from apportion.serving.bench.timing import measure
from apportion.serving.guarantees.cascade import Cascade, Pool, ask, ends_at, margins_of
from apportion.serving.guarantees.certificate import digest_of_texts
from apportion.serving.guarantees.certifying import mean_cost, prices_of, wrong_of
from apportion.serving.guarantees.guarantee import binomial_bound, binomial_tail, last_certified
from apportion.serving.guarantees.threshold_path import find_path
from apportion.serving.runtime.session import Runtime
from apportion.study import records

ROOT = Path(__file__).parents[1]
STUDIES = {"ag_news": "nested-ag-news", "dbpedia14": "nested-dbpedia14", "imdb": "nested-imdb"}
METHODS = {"cascade": "nested", "depth": "depth"}  # and the folder of its checkpoint, SET-FOLDER
RUNTIMES = ("torch", "int8")  # "float32", the exported file in single precision, may be asked for
EPSILONS, CONFIDENCE, DRAWS = (0.01, 0.02), 0.95, 5
MOST, TUNED, TESTED, TIMED = 5000, 1000, 2000, 128  # rows
BATCH, REPEATS = 32, 5


@dataclass(frozen=True)
class Place:
    """Where things are."""

    data: Path
    runs: Path
    out: Path

    def checkpoint(self, name: str, method: str) -> Path:
        """The folder of a checkpoint."""
        return self.runs / "checkpoints" / f"{name}-{method}"


def train_depth(place: Place, name: str) -> None:
    """The checkpoint whose budgets are its first layers, trained as the nested one was."""
    import torch
    from rich.console import Console

    from apportion.elastic.checkpoint import has_checkpoint, save
    from apportion.study.experiment import read_experiment
    from apportion.study.production import produce
    from apportion.training.progress import training_bar

    folder = place.checkpoint(name, "depth")
    if has_checkpoint(folder):
        return
    torch.set_num_threads(1)
    study = STUDIES[name]
    plan = read_experiment(ROOT / "experiments" / f"{study}.toml", place.data / name)
    seed = load(place.checkpoint(name, "nested")).notes["seed"]
    nested = next((one for one in plan.stages_of("nested") if one.seed == seed), None)
    if nested is None:
        sys.exit(f"{study}.toml has no seed {seed}, which the nested checkpoint is of")
    # The study's own depth is of its first seeds: here it is of the one that is compared.
    depth = replace(plan.stages_of("depth")[0], task=nested.task, seed=seed, parent=nested.teacher)
    stage = replace(nested, method="depth-nested", parent=depth)
    with training_bar(Console(stderr=True)) as bar:
        save(produce(stage, place.runs / study, progress=bar), folder)
    print(folder, flush=True)


def texts_of(file: Path, runtime: Runtime) -> list[str]:
    """Different texts of a file, the first so many, in an order of their own."""
    columns = (runtime.facts.get("task") or {}).get("text", ["text"])
    with open_text(file) as stream:
        rows = [row for row in read_csv(stream, file.name, columns, None) if isinstance(row, Row)]
    distinct = list({plain(row.text): row.text for row in rows}.values())
    order = np.random.default_rng(0).permutation(len(distinct))[:MOST]
    return [distinct[n] for n in order]


def runtime_of(place: Place, name: str, method: str, kind: str) -> Runtime:
    """A checkpoint run by torch, or its exported file, which is written the first time."""
    folder = place.checkpoint(name, METHODS[method])
    if kind == "torch":
        return Runtime(folder)
    from apportion.serving.runtime.exporting import export

    written = place.runs / "certified" / f"{name}-{method}-{kind}"
    if not written.exists():
        some = texts_of(place.data / name / "train.csv", Runtime(folder))[:256]
        export(load(folder), written, texts=some, int8=kind == "int8")
    return Runtime(written)


def answers_of(place: Place, label: str, runtime: Runtime, texts: list[str]) -> Pool:
    """What every level says of every text; kept in a file of these texts and this runtime."""
    said = [*runtime.identity.values(), digest_of_texts(texts)]
    digest = hashlib.sha256("\n".join(said).encode()).hexdigest()
    kept = place.runs / "certified" / f"{label}-{digest[:12]}.npz"
    if not kept.exists():
        encoded = runtime.tokenizer.encode(texts)
        likely = [ask(runtime, encoded, level=level, batch=BATCH) for level in runtime.levels]
        values: dict[str, Any] = {
            "labels": np.array([one.argmax(axis=-1) for one in likely]),
            "margins": np.array([margins_of(one) for one in likely]),
            "costs": np.array(runtime.costs),
        }
        part = kept.with_suffix(".part.npz")
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(part, **values)
        write_bytes(kept, part.read_bytes())
        part.unlink()
    with np.load(kept) as found:
        return Pool(found["labels"], found["margins"])


def seconds_to_certify(runtime: Runtime, texts: list[str]) -> float:
    """What all levels take for the rows that tune and test, by the time of these texts."""
    encoded = runtime.tokenizer.encode(texts)
    started = time.perf_counter()
    for level in runtime.levels:
        ask(runtime, encoded, level=level, batch=BATCH)
    return (time.perf_counter() - started) * (TUNED + TESTED) / len(texts)


def certify_draw(
    pool: Pool, runtime: Runtime, *, draw: int, epsilon: float
) -> tuple[dict[str, object], np.ndarray]:
    """A certificate on one split, the truth on the other rows, and where those stand."""
    delta = 1.0 - CONFIDENCE
    order = np.random.default_rng(draw).permutation(len(pool))
    tuning, testing = pool.rows(order[:TUNED]), pool.rows(order[TUNED : TUNED + TESTED])
    others = order[TUNED + TESTED :]
    path = find_path(tuning, prices_of(runtime.costs), epsilon=epsilon)
    wrong = [wrong_of(testing, step.thresholds) for step in path]
    last = last_certified(binomial_tail(wrong, len(testing), epsilon), delta)
    assert last is not None
    thresholds = path[last].thresholds
    ends = ends_at(testing.margins, thresholds)
    rest = pool.rows(others)
    differs = rest.differs(0.0)[ends_at(rest.margins, thresholds), np.arange(len(rest))]
    facts: dict[str, object] = {
        "disagree_at_most": epsilon,
        "confidence": CONFIDENCE,
        "tuned_rows": len(tuning),
        "rows": len(testing),
        "disagreements": wrong[last],
        "bound": round(binomial_bound(wrong[last], len(testing), delta), 6),
        "levels": list(runtime.levels),
        "thresholds": list(thresholds),
        "ends": [round(float((ends == n).mean()), 4) for n in range(len(runtime.levels))],
        "cost": round(mean_cost(testing, thresholds, runtime.costs), 4),
        "test_rows": len(rest),
        "test_disagreements": int(differs.sum()),
    }
    return facts, others


def speeds(
    runtime: Runtime,
    cascades: list[list[float | None]],
    texts: list[str],
    eager: Runtime | None,
) -> list[dict[str, object]]:
    """How fast cascades are beside the whole model, from text to label; arms take turns."""
    models = {"whole": Cascade.at(runtime, runtime.levels[-1])}
    models |= {f"cascade {n}": Cascade(runtime, found) for n, found in enumerate(cascades)}
    if eager is not None:
        models["eager"] = Cascade.at(eager, 1.0)
    arms = {name: partial(one.predict, texts, batch=BATCH) for name, one in models.items()}
    times = {one.arm: one for one in measure(arms, REPEATS, warmup=1, threads=runtime.threads)}
    found: list[dict[str, object]] = []
    for n in range(len(cascades)):
        fast = times[f"cascade {n}"]
        facts: dict[str, object] = {
            "timed_rows": len(texts),
            "speed": round(fast.speedup, 4),
            "low": round(fast.low, 4),
            "high": round(fast.high, 4),
            "rows_per_second": round(1000 * len(texts) / fast.median_ms, 1),
            "whole_rows_per_second": round(1000 * len(texts) / times["whole"].median_ms, 1),
            "repeats": REPEATS,
        }
        if eager is not None:
            facts["over_eager"] = round(times["eager"].median_ms / fast.median_ms, 4)
        found.append(facts)
    return found


def run(place: Place, name: str, method: str, kind: str, *, draws: int) -> None:
    """All draws of one data set, method and runtime that have no record yet.

    Without draws only the answers are made.
    """
    folder = place.checkpoint(name, METHODS[method])
    if not folder.exists():
        print(f"{folder} is not there: left out", file=sys.stderr)
        return
    runtime = runtime_of(place, name, method, kind)
    texts = texts_of(place.data / name / "test.csv", runtime)
    pool = answers_of(place, f"{name}-{method}-{kind}", runtime, texts)
    dense = place.checkpoint(name, "dense")
    eager = Runtime(dense) if kind == "int8" and dense.exists() else None
    file, trained = place.out / "certified.jsonl", load(folder).notes
    for draw in range(1, draws + 1):
        key = {
            "stage": runtime.identity["weights"][:16],
            "method": method,
            "data_seed": draw,
            "precision": runtime.identity["precision"],
            "runtime": runtime.identity["runtime"],
        }
        if any(all(one.get(n) == v for n, v in key.items()) for one in records.read(file)):
            continue
        made = [certify_draw(pool, runtime, draw=draw, epsilon=epsilon) for epsilon in EPSILONS]
        timed = [texts[n] for n in made[0][1][:TIMED]]  # the same rows for both
        thresholds: list[Any] = [facts["thresholds"] for facts, _ in made]
        # The dense model by torch is slow, and the same in every draw.
        measured = speeds(runtime, thresholds, timed, eager if draw == 1 else None)
        seconds, lines = round(seconds_to_certify(runtime, timed), 1), list[dict[str, Any]]()
        for (facts, _), speed in zip(made, measured, strict=True):
            record = {
                "kind": "certified",
                **key,
                "seed": trained.get("seed", 0),
                "only": None,
                "data": name,
                "threads": runtime.threads,
                "batch": BATCH,
                **facts,
                **speed,
                "seconds": seconds,
                **records.provenance(),
            }
            records.record_of(record)  # complains of one that is not of its kind
            lines.append(record)
            told = f"{record['test_disagreements']} of {record['test_rows']} differ"
            promised = f"≤ {record['disagree_at_most']:g}, {record['speed']:.2f}x"
            print(f"{name} {method} {kind} draw {draw}: {promised}, {told}", flush=True)
        records.append(file, *lines)  # both or none: a draw that has a record is not measured again


def main() -> None:
    """Every data set that is there, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the folder of the data sets")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--out", type=Path, default=ROOT / "experiments" / "certificates")
    parser.add_argument("--sets", nargs="*", default=list(STUDIES))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--runtimes", nargs="*", default=list(RUNTIMES))
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--train-depth", action="store_true")
    parser.add_argument("--untimed", action="store_true")
    asked = parser.parse_args()
    place = Place(asked.data, asked.runs, asked.out)
    for name in asked.sets:
        if not (place.data / name / "test.csv").exists():
            print(f"{place.data / name} is not there: left out", file=sys.stderr)
            continue
        if asked.train_depth:
            train_depth(place, name)
        for method, kind in product(asked.methods, asked.runtimes):
            run(place, name, method, kind, draws=0 if asked.untimed else asked.draws)


if __name__ == "__main__":
    main()
