"""Writes the picture, the table and the answers of README.md: `python docs/front_page.py`.

Speed is of one text of 128 tokens, from the comparison of runtimes; accuracy is of the same weights
on all test rows, from the study that trained them. The answers are what their int8 file said of
some sentences; `python docs/front_page.py FOLDER` asks an exported folder again.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from apportion.files import json_text, read_json, write_text
from apportion.study import records
from apportion.study.report.drawing import Picture
from apportion.study.report.markdown import fill
from apportion.study.report.speed_figure import SpeedPoint, draw_speed
from apportion.study.report.table import Table

HOME = Path(__file__).parent.parent
PAGE, FIGURE = HOME / "README.md", HOME / "docs" / "figures" / "front.svg"
ANSWERS = HOME / "docs" / "front-answers.json"
ASKED_AT = 0.25
SENTENCES = (
    "They won the final in extra time.",
    "The bank cut its forecast for the year.",
    "A probe sends back its first pictures of the comet.",
)
RESULTS = HOME / "experiments" / "results"
SUBJECT, STUDY, SHAPE = "AG News", "nested-ag-news", "1 x 128"
BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.125)
# Single-precision peers give the dense model's own answers.
PEERS = {
    "torch": "dense, PyTorch",
    "torch-compiled": "dense, torch.compile",
    "onnxruntime": "dense, ONNX Runtime",
}
INT8 = "onnxruntime-int8"

Timed = Mapping[tuple[str, float], Mapping[str, Any]]


def timed() -> Timed:
    """The newest time of each arm and level, for one text and one thread."""
    found: dict[tuple[str, float], Mapping[str, Any]] = {}
    wanted = {"kind": "peer_latency", "subject": SUBJECT, "shape": SHAPE, "threads": 1}
    for record in records.read(RESULTS / "runtime.jsonl"):
        if wanted.items() <= record.items():
            found[record["arm"], record["level"]] = record
    return found


def accuracies(weights: str) -> tuple[dict[float, float], float]:
    """What the weights that were timed get right at each budget, and what the dense model does."""
    have = records.read(RESULTS / f"{STUDY}.jsonl")
    stages = [r for r in have if r["kind"] == "stage" and r.get("weights") == weights]
    points = [r for r in have if r["kind"] == "point"]
    own = {r["budget"]: r["accuracy"] for r in points if r["stage"] == stages[-1]["stage"]}
    seed = stages[-1]["seed"]
    (dense,) = {r["accuracy"] for r in points if (r["method"], r["seed"]) == ("dense", seed)}
    return own, dense


def int8_accuracies(weights: str) -> dict[tuple[str, float], float]:
    """What int8 gets right on the same rows: our file at each level, and the dense model."""
    wanted = {"kind": "peer_answers", "subject": SUBJECT, "weights": weights}
    return {
        (record["arm"], record["level"]): record["accuracy"]
        for record in records.read(RESULTS / "runtime.jsonl")
        if wanted.items() <= record.items()
    }


def table() -> Table:
    """Five budgets: what they keep, and how fast they are."""
    times = timed()
    first = times["file", 1.0]
    own, dense = accuracies(first["weights"])
    int8 = int8_accuracies(first["weights"])
    rows = tuple(
        (
            f"{budget:g}",
            f"{100 * own[budget]:.1f} ({100 * (own[budget] - dense):+.1f})",
            f"{100 * int8['file-int8', budget]:.1f}",
            _times(times["file", budget], "torch"),
            _times(times["file-int8", budget], "torch"),
            _times(times["file-int8", budget], INT8),
        )
        for budget in BUDGETS
    )
    machine = first["machine"]
    note = (
        "MiniLM on AG News: 2,000 labelled rows, 8,000 others, one seed, 7,600 test rows; dense "
        f"{100 * dense:.1f} %, by ONNX Runtime's int8 {100 * int8[INT8, 1.0]:.1f} %. Speed: one "
        f"text of 128 tokens, one thread, {machine['processor']} ({machine['capability']})."
    )
    columns = (
        "budget",
        "accuracy, %",
        "in int8",
        "fp32 file over PyTorch",
        "int8 file over PyTorch",
    )
    return Table("budgets", "", (*columns, "over int8 dense"), rows, note)


def _times(record: Mapping[str, Any], other: str) -> str:
    return f"{record['over'][other][0]:.1f}x"


def picture() -> Picture:
    """Accuracy against measured speed: our file's levels beside what others run."""
    times = timed()
    weights = times["file", 1.0]["weights"]
    (_, dense), int8 = accuracies(weights), int8_accuracies(weights)
    speed = {arm: record["over"]["torch"][0] for arm, record in times.items()}
    levels = [
        (level, SpeedPoint("apportion: one int8 file, by budget", speed[arm, level], right))
        for (arm, level), right in sorted(int8.items(), reverse=True)
        if arm == "file-int8"
    ]
    peers = [SpeedPoint(name, speed[arm, 1.0], dense) for arm, name in PEERS.items()]
    peers.append(SpeedPoint("dense, ONNX Runtime int8", speed[INT8, 1.0], int8[INT8, 1.0]))
    return draw_speed(levels, peers, caption="")


def ask(folder: Path) -> dict[str, Any]:
    """What the file of an exported folder says of the sentences, as `predict` prints it."""
    from apportion.data.rows import read_csv
    from apportion.serving.runtime.prediction import lines_of, predict
    from apportion.serving.runtime.session import Runtime

    runtime = Runtime(folder)
    answer = partial(runtime, budget=ASKED_AT)
    rows = read_csv(io.StringIO("text\n" + "\n".join(SENTENCES)), "new.csv", ["text"], None)
    predicted = predict(answer, runtime.tokenizer, runtime.classes, rows, 64, 64)
    printed = "".join(lines_of(predicted, runtime.classes, "csv"))
    facts = {name: runtime.facts[name] for name in ("weights", "precision", "target")}
    return {**facts, "budget": ASKED_AT, "printed": printed.splitlines()}


def answers() -> list[str]:
    """The lines that `predict` printed, if they are of the weights that were timed."""
    said = read_json(ANSWERS)
    if said["weights"] != timed()["file", 1.0]["weights"]:
        raise ValueError(f"{ANSWERS.name} is of other weights: python docs/front_page.py FOLDER")
    return list(said["printed"])


def page() -> str:
    """README.md with its table and answers."""
    text = fill(PAGE.read_text(encoding="utf-8"), "front", [table()])
    printed = "\n".join(answers())
    return _ANSWERS.sub(lambda match: f"{match[1]}{printed}\n{match[2]}", text)


_ANSWERS = re.compile(r"(<!-- answers -->\n```text\n).*?(```)", re.DOTALL)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_text(ANSWERS, json_text(ask(Path(sys.argv[1])), ANSWERS.name))
    write_text(PAGE, page())
    write_text(FIGURE, picture().svg() + "\n")
