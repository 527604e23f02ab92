"""A conversion with texts alone: no experiment, since there is no accuracy to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from apportion.elastic.checkpoint import Checkpoint, save
from apportion.elastic.conversion import Converted, convert
from apportion.elastic.vouching import AGREEMENT, FEWEST
from apportion.files import holding
from apportion.models.hub import load_model, load_tokenizer, own_classes
from apportion.study.records import provenance
from apportion.study.report.table import Table
from apportion.training.progress import Tick, telling
from apportion.training.tuning import ROWS, shared_out, tuning


def convert_texts(
    name: str,
    texts: Sequence[str],
    *,
    into: Path,
    length: int,
    units: str = "all",
    agreement: float = AGREEMENT,
    tune: int = ROWS,
    seconds: float | None = None,
    progress: Callable[[Tick], None] | None = None,
) -> Converted:
    """Converts a model of Transformers with some of its texts; writes the checkpoint."""
    classes = own_classes(name)
    words = load_tokenizer(name, length)
    model = load_model(name, classes, 0, trained=True)
    ordering, learning = shared_out(seconds, tuned=tune > 0)
    with holding(into):
        made = convert(
            model,
            texts,
            tokenizer=words,
            units=units,
            agreement=agreement,
            tuned=tuning(rows=tune, seconds=learning, progress=progress) if tune else None,
            seconds=ordering,
            progress=telling(progress),
        )
        facts = {**made.facts, **provenance(threads=torch.get_num_threads())}
        notes = {"classes": classes, "method": "converted", "recipes": [], "training": facts}
        save(Checkpoint(made.model, notes, None, words), into / "checkpoint")
    return made


def agreement_tables(told: Mapping[str, Any]) -> list[Table]:
    """What was vouched for, budget by budget; no table where no text was left for it."""
    budgets = [
        {
            "budget": budget,
            "answers as the whole model": f"{share:.1%}",
            "at least": f"{bound:.1%}",
            "in its range": "yes" if float(budget) >= told.get("from", 1.0) else "no",
        }
        for budget, (share, bound) in told.get("agreement", {}).items()
    ]
    few = f": {FEWEST} are needed to vouch for a budget" if told["rows"] < FEWEST else ""
    title = f"Agreement with the whole model on {told['rows']:,} other texts{few}"
    return [Table.of_rows("agreement", title, rows=budgets)] if budgets else []
