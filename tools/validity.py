"""Whether promises hold, on the answers of real models: `python tools/validity.py RUNS`.

RUNS has the answers that `tools/certified.py` kept in certified/*.npz. Each pool of answers is
taken for the population, so that the share of answers that differ is known for all thresholds.
Then, 500 times each:

- rows are drawn with replacement, tune and test as `apportion certify` has them, and the promise is
  compared with the truth; at a confidence of 95 %, and at 50 %, where it has to be broken often;
- a file is drawn from the pool, certified by its own rows as `predict --disagree-at-most` does it,
  and the statement is compared with all of its answers.

No model runs: it takes a minute or two for each pool. One record per pool is added to
experiments/certificates/certified.jsonl.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import apportion.study.certificate_records  # noqa: F401 - makes its kinds known
from apportion.serving.guarantees.cascade import Pool, ends_at
from apportion.serving.guarantees.certifying import prices_of, wrong_of
from apportion.serving.guarantees.file_certifying import draw_sizes, last_of_file
from apportion.serving.guarantees.guarantee import binomial_tail, last_certified
from apportion.serving.guarantees.threshold_path import Step, find_path
from apportion.study import records

OUT = Path(__file__).parents[1] / "experiments" / "certificates" / "certified.jsonl"
TUNED, TESTED, FILE = 1000, 2000, 3000  # rows


@dataclass(frozen=True)
class Population:
    """Answers of all levels to all rows, and what the levels cost."""

    pool: Pool
    costs: tuple[float, ...]

    def drawn(self, rows: np.ndarray, epsilon: float) -> list[Step]:
        """The path of thresholds that some of the rows give."""
        return list(find_path(self.pool.rows(rows), prices_of(self.costs), epsilon=epsilon))

    def differ(self, step: Step, rows: np.ndarray | slice) -> np.ndarray:
        """Which of some rows a cascade answers otherwise than the whole model."""
        chosen = self.pool.rows(rows)
        ends = ends_at(chosen.margins, step.thresholds)
        return chosen.differs(0.0)[ends, np.arange(len(chosen))]


def check_streams(
    population: Population, *, epsilon: float, deltas: tuple[float, ...], draws: int, seed: int
) -> dict[float, float]:
    """For each delta, the share of the draws whose promise the population does not keep."""
    draw, count = np.random.default_rng(seed), len(population.pool)
    broken = dict.fromkeys(deltas, 0)
    for _ in range(draws):
        path = population.drawn(draw.integers(0, count, TUNED), epsilon)
        testing = population.pool.rows(draw.integers(0, count, TESTED))
        wrong = [wrong_of(testing, step.thresholds) for step in path]
        for delta in deltas:
            last = last_certified(binomial_tail(wrong, TESTED, epsilon), delta)
            if last is not None:
                risk = population.differ(path[last], slice(None)).mean()
                broken[delta] += bool(risk > epsilon)
    return {delta: count / draws for delta, count in broken.items()}


def check_files(
    population: Population, *, epsilon: float, delta: float, draws: int, seed: int
) -> tuple[float, float]:
    """The share of the files that have more answers that differ than said, and that were certified.

    Rows that were drawn keep the whole model's answers, as in the file that the command writes.
    """
    draw, broken, certified = np.random.default_rng(seed), 0, 0
    sizes = draw_sizes(FILE, epsilon=epsilon, delta=delta)
    assert sizes is not None
    tuned, tested = sizes
    for _ in range(draws):
        rows = draw.permutation(len(population.pool))[:FILE]
        path = population.drawn(rows[:tuned], epsilon)
        testing = population.pool.rows(rows[tuned : tuned + tested])
        wrong = [wrong_of(testing, step.thresholds) for step in path]
        last = last_of_file(wrong, tested, count=FILE, tuned=tuned, epsilon=epsilon, delta=delta)
        if last is None or all(one is None for one in path[last].thresholds):
            continue
        certified += 1
        differ = population.differ(path[last], rows[tuned + tested :]).sum()
        broken += bool(differ > math.floor(epsilon * FILE))
    return broken / draws, certified / draws


def main() -> None:
    """Every pool of answers that is there and has no record yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--epsilon", type=float, default=0.01)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    epsilon, draws = asked.epsilon, asked.draws
    for file in sorted((asked.runs / "certified").glob("*.npz")):
        data, method, kind, digest = file.stem.rsplit("-", 3)
        key = {"kind": "validity", "stage": digest, "disagree_at_most": epsilon}
        if any(all(one.get(n) == v for n, v in key.items()) for one in records.read(asked.out)):
            continue
        with np.load(file) as found:
            pool, costs = Pool(found["labels"], found["margins"]), tuple(found["costs"].tolist())
        population = Population(pool, costs)
        if len(pool) < FILE:
            raise SystemExit(f"{file} has {len(pool)} rows, and a file of {FILE} is drawn from it")
        held = check_streams(population, epsilon=epsilon, deltas=(0.05, 0.5), draws=draws, seed=0)
        files, certified = check_files(population, epsilon=epsilon, delta=0.05, draws=draws, seed=1)
        boldest = population.drawn(np.arange(len(pool)), epsilon)[-1]
        line = {
            **key,
            "seed": 0,
            "data_seed": 0,
            "method": method,
            "only": None,
            "data": data,
            "run_by": kind,
            "population": len(pool),
            "draws": draws,
            "boldest": round(float(population.differ(boldest, slice(None)).mean()), 5),
            "broken": held[0.05],
            "broken_at_half": held[0.5],
            "file_rows": FILE,
            "files_broken": files,
            "files_certified": certified,
            **records.provenance(),
        }
        records.append(asked.out, records.record_of(line).to_dict())
        print(
            f"{data} {method} {kind}: broken {held[0.05]:.1%} of {draws}, at 50 % {held[0.5]:.1%}; "
            f"files {files:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
