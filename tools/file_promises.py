"""Promises about files, through the command: `python tools/file_promises.py FOLDER texts.csv`.

From the texts, files are drawn and given to `apportion predict --disagree-at-most`. What each
statement says is compared with the whole model's answers to the same rows, which are asked once.
One record is added to experiments/certificates/certified.jsonl.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import apportion.study.certificate_records  # noqa: F401 - makes its kinds known
from apportion.serving.runtime.session import Runtime
from apportion.study import records

OUT = Path(__file__).parents[1] / "experiments" / "certificates" / "certified.jsonl"


def predict(folder: Path, texts: Path, out: Path, *options: str) -> list[dict[str, str]]:
    """The rows that the command writes."""
    command = [sys.executable, "-m", "apportion.cli", "predict", folder, texts, "--out", out]
    subprocess.run([*command, *options], check=True, stderr=subprocess.DEVNULL)
    with out.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Draws, asks, compares, and keeps what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path, help="a CSV file with a header")
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--epsilon", type=float, default=0.01)
    parser.add_argument("--subject", help="what the record calls it; default: the texts' folder")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    csv.field_size_limit(sys.maxsize)
    with asked.texts.open(newline="", encoding="utf-8-sig") as file:
        header, *lines = csv.reader(file)
    identity = Runtime(asked.folder).identity
    kept, certified, differ, early = 0, 0, [], []
    with tempfile.TemporaryDirectory() as home:
        one, out = Path(home, "file.csv"), Path(home, "labels.csv")
        truth = [row["label"] for row in predict(asked.folder, asked.texts, out)]
        assert len(truth) == len(lines), "a row of the texts can't be read"
        for seed in range(asked.files):
            drawn = random.Random(seed).sample(range(len(lines)), asked.rows)
            with one.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([header, *(lines[n] for n in drawn)])
            promise = ("--disagree-at-most", str(asked.epsilon), "--seed", str(seed))
            given = predict(asked.folder, one, out, *promise)
            statement = json.loads(Path(f"{out}.statement.json").read_text(encoding="utf-8"))
            wrong = sum(row["label"] != truth[n] for row, n in zip(given, drawn, strict=True))
            kept += wrong <= statement["at_most"]
            certified += statement["certified"]
            differ.append(wrong / asked.rows)
            early.append(statistics.mean(float(row["budget"]) < 1.0 for row in given))
            print(f"file {seed}: {wrong} differ, {statement['at_most']} may", flush=True)
    line = {
        "kind": "file_promises",
        "stage": identity["weights"][:12],
        "method": "cascade",
        "seed": 0,
        "data_seed": 0,
        "only": None,
        "data": asked.subject or asked.texts.parent.name,
        "run_by": identity["precision"],
        "disagree_at_most": asked.epsilon,
        "files": asked.files,
        "file_rows": asked.rows,
        "kept": kept,
        "certified": certified,
        "most": round(max(differ), 5),
        "early": round(statistics.mean(early), 4),
        **records.provenance(),
    }
    records.append(asked.out, records.record_of(line).to_dict())


if __name__ == "__main__":
    main()
