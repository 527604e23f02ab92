"""Delivery: the checkpoint and the page that a command leaves in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from apportion.elastic.checkpoint import Checkpoint, limit, save
from apportion.elastic.vouching import AGREEMENT, asking
from apportion.study.experiment import Experiment
from apportion.study.production import produce
from apportion.study.report.page import write_page


def deliver(
    plan: Experiment,
    have: Sequence[Mapping[str, Any]],
    into: Path,
    *,
    agreement: float = AGREEMENT,
    page: str = "report.html",
) -> Checkpoint:
    """The last model of an experiment, written with what was measured on it, and the report."""
    last = plan.stages[-1]
    made = produce(last, into / "stages")
    measured = [dict(r) for r in have if (r["kind"], r["stage"]) == ("point", last.key)]
    notes = {**made.notes, "measured": measured}
    if "vouched" in notes["training"]:
        told = asking(notes["training"]["vouched"], agreement)
        notes["training"] = {**notes["training"], "vouched": told}
        if "agreement" in told:  # it was measured below its range, too
            limit(made.model, last.floor, told.get("from", 1.0))
    checkpoint = replace(made, notes=notes)
    save(checkpoint, into / "checkpoint")
    write_page(plan, list(have), into / page)
    return checkpoint
