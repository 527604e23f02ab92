"""The page of one's own run: what came out, which budget to choose, and what to type next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from apportion.files import write_text
from apportion.study.own_run import DENSE, INT8, OURS, WORDS, OwnRun
from apportion.study.report.page import render
from apportion.study.report.speed_figure import SpeedPoint, draw_speed
from apportion.study.report.table import Table
from apportion.study.report.word_view import word_views

_LOSS = 1.0  # points of accuracy that people are taken to give away for speed
_NAMES = {
    DENSE: "dense, torch",
    INT8: "dense, int8",
    WORDS: "TF-IDF",
    OURS: "this file, by budget",
}


@dataclass(frozen=True)
class Row:
    """One way to answer, with all that was measured of it."""

    arm: str
    level: float
    accuracy: float
    agreement: float
    lost: float  # points of accuracy beside the dense model
    low: float  # 95 % interval of what is lost
    high: float
    ms: float  # per text
    over: Mapping[str, float]


def rows_of(run: OwnRun) -> list[Row]:
    """The levels of the file from the whole one down, then the others."""
    times = {(r["arm"], r["level"]): r for r in run.of_kind("peer_latency")}
    answers = {(r["arm"], r["level"]): r for r in run.of_kind("run_answers")}
    ours = sorted((arm for arm in answers if arm[0] == OURS), key=lambda arm: -arm[1])
    others = [arm for arm in ((DENSE, 1.0), (INT8, 1.0), (WORDS, 1.0)) if arm in answers]
    found = []
    for arm in (*ours, *others):
        said, took = answers[arm], times[arm]
        lost, spread = _lost(said)
        found.append(
            Row(
                *arm,
                accuracy=said["accuracy"],
                agreement=said["agreement"],
                lost=lost,
                low=lost - spread,
                high=lost + spread,
                ms=took["median_ms"] / took["rows"],
                over={name: ratios[0] for name, ratios in took["over"].items()},
            )
        )
    return found


def _lost(said: Mapping[str, Any]) -> tuple[float, float]:
    """Points that are lost to the dense model on the same rows, and half of their interval."""
    rows, gained, lost = said["rows"], said["gained"], said["lost"]
    share = (lost - gained) / rows
    variance = max(0.0, (lost + gained) / rows - share * share) / rows
    return 100.0 * share, 196.0 * math.sqrt(variance)


def run_table(run: OwnRun) -> Table:
    """The one table: what each budget keeps and how fast it is, beside the others."""
    cells = tuple(
        (
            f"{row.level:g}" if row.arm == OURS else _NAMES[row.arm],
            f"{100 * row.accuracy:.1f} %",
            f"{100 * row.agreement:.1f} %",
            f"{row.ms:.2f}",
            _times(row, DENSE),
            _times(row, INT8),
        )
        for row in rows_of(run)
    )
    answered, timed = run.of_kind("run_answers")[0], run.of_kind("peer_latency")[0]
    note = (
        f"{answered['rows']:,} test texts; agreement is with the dense model. Times are of one "
        f"text at a time, {timed['tokens']:g} tokens on average, encoded before; "
        f"{timed['threads']} thread{'s' * (timed['threads'] > 1)}, "
        f"{timed['machine']['processor']} ({timed['machine']['capability']}), arms taking turns. "
        "Dense is the model without a dial, in PyTorch and as ONNX Runtime's own int8; TF-IDF is "
        "logistic regression on counts of words."
    )
    columns = ("budget", "accuracy", "agreement", "ms a text", "over torch", "over int8")
    return Table("run", "What each budget gives", columns, cells, note)


def _times(row: Row, other: str) -> str:
    return f"{row.over[other]:.1f}x" if other in row.over else "–"


def advice(run: OwnRun) -> str:
    """Which budget to choose, in a sentence from the numbers."""
    rows = [row for row in rows_of(run) if row.arm == OURS]
    dense = next(row for row in rows_of(run) if row.arm == DENSE)
    chosen = min((row for row in rows if row.lost <= _LOSS), key=lambda r: r.level, default=None)
    if chosen is None:
        nearest = min(rows, key=lambda row: row.lost)
        return (
            f"No budget stays within a point of the dense model's {100 * dense.accuracy:.1f} %; "
            f"{nearest.level:g} comes nearest, {nearest.lost:.1f} points below it. More training "
            "rows or epochs would help."
        )
    beside = f" and {_times(chosen, INT8)} as fast as in int8" if INT8 in chosen.over else ""
    return (
        f"Choose {chosen.level:g}: it gets {100 * chosen.accuracy:.1f} % of the test texts right, "
        f"{_points(chosen)} (95 % interval {-chosen.high:+.1f} to {-chosen.low:+.1f} points), "
        f"and answers a text in {chosen.ms:.1f} ms: {_times(chosen, DENSE)} as fast as the dense "
        f"model in PyTorch{beside}.{_warning(run)}"
    )


def _warning(run: OwnRun) -> str:
    """What people should hear if counting words would do."""
    of_arm = {row.arm: row for row in rows_of(run)}
    if WORDS not in of_arm or of_arm[WORDS].accuracy < of_arm[DENSE].accuracy:
        return ""
    return (
        f" But TF-IDF gets {100 * of_arm[WORDS].accuracy:.1f} % right, no less than the dense "
        "model: these texts may need no encoder."
    )


def _points(row: Row) -> str:
    if abs(row.lost) < 0.05:
        return "as many as the dense model"
    return f"{abs(row.lost):.1f} points {'fewer' if row.lost > 0 else 'more'} than the dense model"


def certificate_words(run: OwnRun) -> str:
    """What the certificate promises, in a sentence."""
    one = run.certificate
    if one is None:
        return ""
    if not one.certified:
        return (
            f"No cascade could be certified at {100 * one.disagree_at_most:g} %, so with the "
            "certificate the whole model answers every text."
        )
    return (
        f"With the certificate, texts end at the first budget that is sure of them, and at most "
        f"{100 * one.disagree_at_most:g} % of the answers differ from the whole file's, with "
        f"{100 * one.confidence:g} % confidence, for texts like those it was tested on: "
        f"{one.disagreements} of {one.rows:,} differed. It runs at {one.speed:.1f}x the whole "
        f"file's speed."
    )


def next_commands(run: OwnRun, *, texts: str = "texts.csv") -> list[tuple[str, str]]:
    """What to type next, with a word on each."""
    onnx = run.folder / "onnx"
    chosen = [row.level for row in rows_of(run) if row.arm == OURS and row.lost <= _LOSS]
    found = [
        (f"apportion predict {onnx} {texts} -b {min(chosen, default=1.0):g}", "labels at a budget"),
        (f"apportion serve {onnx}", "a server with deadlines and price tiers"),
    ]
    if run.certificate is not None:
        promised = f"apportion predict {onnx} {texts} --certificate {onnx / 'certificate.json'}"
        found.insert(1, (promised, "labels with the promise above"))
    return found


def write_run_page(run: OwnRun, path: Path, *, title: str, texts: str = "texts.csv") -> None:
    """Writes the page; it needs nothing beside it."""
    rows = rows_of(run)
    levels = [
        (row.level, SpeedPoint(_NAMES[OURS], row.over[DENSE], row.accuracy))
        for row in rows
        if row.arm == OURS
    ]
    peers = [
        SpeedPoint(_NAMES[row.arm], row.over[DENSE], row.accuracy)
        for row in rows
        if row.arm != OURS
    ]
    caption = "One text at a time; numbers beside the line are budgets."
    picture = draw_speed(levels, peers, caption=caption)
    html = render(
        "run.html",
        title=title,
        advice=advice(run),
        promise=certificate_words(run),
        certificate=run.certificate,
        table=run_table(run),
        picture=picture,
        svg=Markup(picture.svg()),
        layers=_layers(run.facts),
        levels=run.facts["levels"],
        size=run.facts["files"]["model.onnx"]["bytes"] / 1e6,
        classes=run.facts["classes"],
        words=word_views(run.measured),
        changed=run.of_kind("changed_text"),
        commands=next_commands(run, texts=texts),
        last=run.of_kind("run_answers")[0],
    )
    write_text(path, html)


def _layers(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per layer, the share of its heads and of its neurons that each level keeps."""
    whole = facts["kept"][-1]
    return [
        {
            "name": layer,
            "levels": [
                {
                    kind: len(kept[layer][kind]) / len(units) if units else 0.0
                    for kind, units in whole[layer].items()
                }
                for kept in facts["kept"]
            ],
        }
        for layer in whole
    ]
