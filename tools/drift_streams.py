"""Simulates audited streams and records how the alarm does: `python tools/drift_streams.py`.

Streams at the promised risk say how often it rings for nothing; streams that drift say how soon it
rings. Numbers are written to experiments/certificates/drift.jsonl, which is begun anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import apportion.study.certificate_records  # noqa: F401 - makes its kinds known
from apportion.files import discard
from apportion.serving.guarantees.drift import first_alarms
from apportion.study import records

OUT = Path(__file__).parents[1] / "experiments" / "certificates" / "drift.jsonl"
EPSILON, DELTA = 0.01, 0.05
# Risk and audits before the drift, risk and audits after it.
STREAMS = (
    (0.01, 10_000, None, 0),  # nothing but the promised risk
    (0.005, 0, 0.03, 4000),
    (0.005, 2000, 0.03, 4000),
    (0.005, 10_000, 0.03, 4000),
    (0.005, 2000, 0.05, 4000),
)


def simulate(
    risk: float, audits: int, drifted: float | None, later: int, *, streams: int, seed: int = 0
) -> dict[str, Any]:
    """One record of so many streams."""
    draw = np.random.default_rng(seed)
    losses = np.empty((streams, audits + later), bool)
    losses[:, :audits] = draw.random((streams, audits)) < risk
    if drifted is not None:
        losses[:, audits:] = draw.random((streams, later)) < drifted
    rang = first_alarms(losses, disagree_at_most=EPSILON, delta=DELTA)
    early = (rang > 0) & (rang <= audits)
    facts: dict[str, Any] = {"false_alarms": round(float(early.mean()), 4)}
    if drifted is not None:
        waited = np.where(rang > audits, rang - audits, np.inf)[~early]
        facts |= {"drifted": drifted, "later": later}
        facts["found"] = round(float(np.isfinite(waited).mean()), 4)
        facts["median"], facts["p90"] = (
            int(np.quantile(waited, q, method="higher")) for q in (0.5, 0.9)
        )
    return {
        "kind": "drift",
        "stage": "simulated",
        "method": "bets with late starts",
        "data_seed": seed,
        "seed": seed,
        "only": None,
        "disagree_at_most": EPSILON,
        "delta": DELTA,
        "streams": streams,
        "risk": risk,
        "audits": audits,
        **facts,
        **records.provenance(),
    }


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """What records of streams say, as Markdown."""
    rows = [
        "| risk before | audits before | alarms before | risk after "
        "| audits until the alarm, median | by when 90 % rang |",
        "|---|---|---|---|---|---|",
    ]
    for one in lines:
        after = one.get("drifted")
        cells = [f"{100 * one['risk']:g} %", f"{one['audits']:,}"]
        cells.append(f"{100 * one['false_alarms']:.1f} %" if one["audits"] else "–")
        cells.append("–" if after is None else f"{100 * after:g} %")
        cells += ["–" if after is None else f"{one[name]:,}" for name in ("median", "p90")]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """All streams, as records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    found = [simulate(*one, streams=asked.streams) for one in STREAMS]
    for record in found:
        records.record_of(record)  # complains of one that is not of its kind
    discard(asked.out)
    records.append(asked.out, *found)
    print(table(found))


if __name__ == "__main__":
    main()
