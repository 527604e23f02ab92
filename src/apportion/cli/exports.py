"""What the commands that take a folder do with one that export wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from apportion.cli.main import err

if TYPE_CHECKING:
    from apportion.elastic.evaluation import Point


def inspect_export(folder: Path, budgets: Sequence[float] | None, as_json: bool) -> None:
    """Shows what an exported folder holds, and what each of its levels keeps."""
    from apportion.serving.runtime.session import Runtime
    from apportion.study.report.table import Table
    from apportion.study.report.terminal import print_json, show

    runtime = Runtime(folder)
    facts = runtime.facts
    if as_json:
        print_json({"kind": "export", **facts, "identity": runtime.identity})
        return
    shown = [runtime.level_of(budget) for budget in budgets or runtime.levels]
    size = sum(file["bytes"] for file in facts["files"].values())
    typer.echo(
        f"exported model: {len(runtime.levels)} levels in one file, {facts['precision']}, "
        f"{size / 1e6:.1f} MB, {len(runtime.classes)} classes, texts of up to "
        f"{facts['length']} tokens; {runtime.identity['runtime']} runs it"
    )
    if facts.get("target"):
        typer.echo(f"int8 weights for {facts['target']}, {facts.get('scales', 'static')} scales")
    at = dict(zip(runtime.levels, zip(runtime.costs, facts["kept"], strict=True), strict=True))
    shares = dict(zip(runtime.levels, facts.get("shares") or [], strict=False))
    rows = [
        (f"{level:g}", f"{at[level][0]:.3f}", layer, _counts(kept) + _tokens(shares, level, number))
        for level in shown
        for number, (layer, kept) in enumerate(at[level][1].items())
    ]
    show([Table("kept", "Kept at each level", ("level", "cost", "layer", "kept"), tuple(rows))])


def sweep_export(
    folder: Path, budgets: Sequence[float] | None, data: Path | None, split: str
) -> list[Point]:
    """How an exported folder does at each of its levels, or at some budgets."""
    from apportion.serving.bench.levels import sweep_levels
    from apportion.serving.runtime.session import Runtime
    from apportion.study.production import task_of_notes
    from apportion.training.progress import working_bar

    runtime = Runtime(folder)
    task = task_of_notes(runtime.facts, runtime.tokenizer, data)
    with working_bar("sweep", err) as bar:
        asked = sorted(budgets) if budgets else None
        return sweep_levels(runtime, task.split(split), budgets=asked, progress=bar)


def bench_export(
    folder: Path,
    budgets: Sequence[float] | None,
    data: Path | None,
    *,
    batch: int,
    repeats: int,
    threads: int,
) -> list[dict[str, Any]]:
    """How long a call of an exported folder takes at each of its levels, taking turns."""
    import torch

    from apportion.serving.bench.calibration import made_up_ids
    from apportion.serving.bench.levels import time_levels
    from apportion.serving.runtime.session import Runtime
    from apportion.study.production import task_of_notes
    from apportion.training.progress import working_bar

    runtime = Runtime(folder, threads=threads)
    own = Path(str((runtime.facts.get("task") or {}).get("data", "")))
    if data is None and not (own / "test.csv").is_file():
        err.print("its data is not here: made-up rows are timed; --data FOLDER times test rows")
        ids = made_up_ids(runtime, batch, runtime.facts["length"], np.random.default_rng(0))
        inputs = {"input_ids": torch.from_numpy(ids)}
    else:
        task = task_of_notes(runtime.facts, runtime.tokenizer, data)
        inputs, _ = task.test.batch(torch.arange(min(batch, len(task.test))), padded=True)
    with working_bar("bench", err) as bar:
        asked = budgets or None
        return time_levels(runtime, [inputs], budgets=asked, repeats=repeats, progress=bar)


def _counts(kept: dict[str, list[int]]) -> str:
    return ", ".join(f"{len(indices)} {kind}" for kind, indices in kept.items())


def _tokens(shares: dict[float, list[float] | None], level: float, layer: int) -> str:
    found = shares.get(level)
    return f", {found[layer]:.0%} of the tokens" if found else ""
