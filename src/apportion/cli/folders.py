"""Commands that take a folder: inspect, sweep, cut, bench."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from apportion.cli.main import AsJson, app, err

if TYPE_CHECKING:
    from apportion.data.task import Task
    from apportion.elastic.elastic import Elastic, Form

Folder = Annotated[Path, typer.Argument(help="A checkpoint folder.", show_default=False)]
Either = Annotated[
    Path,
    typer.Argument(help="A checkpoint, or a folder that export wrote.", show_default=False),
]
Budgets = Annotated[
    list[float] | None,
    typer.Option("--budget", "-b", help="A fraction in (0, 1]; may be given several times."),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder with the texts of its task, if not where it was trained."),
]
Floor = Annotated[
    int | None,
    typer.Option(help="Units that every layer keeps at least. \\[default: as it was made]"),
]


@app.command(
    epilog='[bold]apportion inspect runs/mine/checkpoint -b 0.25 --text "Shares rose after …"[/] '
    "shows which words each layer reads, of a model that drops some."
)
def inspect(
    folder: Either,
    budget: Budgets = None,
    floor: Floor = None,
    text: Annotated[
        str | None,
        typer.Option(help="A text: which of its words does each layer read, at these budgets?"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint or an exported folder holds, and what it keeps at each budget."""
    from apportion.cli.exports import inspect_export
    from apportion.cli.reading import show_words
    from apportion.serving.runtime.exported import is_export

    if is_export(folder):
        _refuse(folder, floor=floor, text=text)
        inspect_export(folder, budget, as_json)
        return
    # Only a checkpoint needs torch.
    from apportion.elastic.card import in_words, unlabelled_in_words
    from apportion.elastic.checkpoint import load
    from apportion.elastic.description import describe
    from apportion.elastic.elastic import plain_of
    from apportion.models.sites import find_sites
    from apportion.study.report.table import Table
    from apportion.study.report.terminal import print_json, show

    loaded = load(folder)
    if text is not None:
        show_words(loaded, text, budget, as_json)
        return
    facts = describe(loaded, budget, floor=floor)
    if as_json:
        print_json(facts)
        return
    plain = plain_of(loaded.model)
    sites = find_sites(plain, ("heads",))
    counts = sorted({site.count for site in sites})
    typer.echo(
        f"{loaded.kind} checkpoint: {type(plain).__name__}, {len(sites)} layers x "
        f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} heads, hidden "
        f"{sites[0].hidden}, {facts['parameters']:,} parameters, {facts['macs']:,} MACs at length "
        f"{loaded.length}",
    )
    typer.echo(f"recipes: {' → '.join(facts['recipes']) or 'none'}")
    nested = facts.get("form") == "nested"
    if loaded.elastic is not None:
        typer.echo(in_words(loaded.elastic))
    if loaded.notes.get("unlabelled"):
        typer.echo(unlabelled_in_words(loaded.notes["unlabelled"]))
    if nested:
        typer.echo("units: one order for all budgets; each layer keeps the first of its units")
    table = Table(
        "kept",
        "Kept at each budget",
        ("budget", "cost soft", "cost hard", "layer", "kept"),
        tuple(
            (
                f"{b['budget']:.2f}",
                "–" if nested else f"{b['cost_soft']:.3f}",
                f"{b['cost_hard']:.3f}",
                layer,
                (_counts(k) if nested else _units(k)) + _tokens(b.get("shares"), number),
            )
            for b in facts["budgets"]
            for number, (layer, k) in enumerate(b["kept"].items())
        )
        or tuple(("", "", "", layer, _units(k)) for layer, k in (facts["kept"] or {}).items()),
    )
    if table.rows:
        show([table])


@app.command()
def sweep(
    folder: Either,
    budget: Budgets = None,
    form: Annotated[
        list[str] | None,
        typer.Option(
            help="soft, hard or cut; may be given several times. "
            "\\[default: soft and hard, or cut where one order is fixed]"
        ),
    ] = None,
    data: Data = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    floor: Floor = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint at many budgets (those from 0.10 to 1.00 that it was made for).

    An exported folder is evaluated at each of its levels.
    """
    from apportion.cli.exports import sweep_export
    from apportion.elastic.evaluation import SWEEP, is_monotone
    from apportion.elastic.evaluation import sweep as run_sweep
    from apportion.serving.runtime.exported import is_export
    from apportion.study.report.table import Table
    from apportion.study.report.terminal import print_json, show
    from apportion.training.progress import working_bar

    if is_export(folder):
        _refuse(folder, floor=floor, form=form)
        points = sweep_export(folder, budget, data, split)
    else:
        model, task = _with_task(folder, data)
        with working_bar("sweep", err) as bar:
            points = run_sweep(
                model,
                task.split(split),
                budgets=sorted(budget or model.within(SWEEP)),
                forms=cast("list[Form] | None", form or None),
                floor=floor,
                progress=bar,
            )
    if as_json:
        rows = [{"budget": p.budget, "form": p.form, **asdict(p.outcome)} for p in points]
        print_json({"split": split, "points": rows, "monotone": is_monotone(points)})
        return
    table = Table(
        "sweep",
        f"Sweep on {split}",
        ("form", "budget", "cost", "accuracy", "loss"),
        tuple(
            (
                p.form,
                f"{p.budget:.2f}",
                f"{p.outcome.cost:.3f}",
                f"{100 * p.outcome.accuracy:.2f}",
                f"{p.outcome.loss:.4f}",
            )
            for p in points
        ),
        f"Cost is {'' if is_monotone(points) else 'not '}monotone in the budget.",
    )
    show([table])


@app.command()
def cut(
    checkpoint: Folder,
    budget: Annotated[float, typer.Option("--budget", "-b", help="A fraction in (0, 1].")],
    into: Annotated[Path, typer.Option("--out", help="Folder for the smaller checkpoint.")],
    floor: Floor = None,
    self_contained: Annotated[
        bool,
        typer.Option(
            help="Write the code of a cut Transformers model beside it, so that it loads with "
            "trust_remote_code=True where apportion is not installed."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the smaller plain model that a budget buys."""
    from apportion.elastic.checkpoint import load, save
    from apportion.models.compute import count_macs, count_parameters
    from apportion.study.report.terminal import print_json

    if into.resolve() == checkpoint.resolve():
        raise ValueError("--out is the checkpoint itself; choose another folder")
    loaded = load(checkpoint)
    smaller = loaded.cut(budget, floor)
    save(smaller, into, self_contained=self_contained)
    model, kept = loaded.require_elastic(), smaller.kept
    assert kept is not None
    facts: dict[str, Any] = {
        "budget": budget,
        "cost": kept.cost,
        "units": kept.count,
        "parameters": count_parameters(smaller.model),
        "parameters_before": count_parameters(model.model),
        "macs": count_macs(smaller.model, model.length),
        "macs_before": count_macs(model.model, model.length),
        "out": str(into),
    }
    if as_json:
        print_json(facts)
        return
    typer.echo(
        f"kept {kept.count} of {len(model.units)} units (cost {kept.cost:.3f}): "
        f"{facts['parameters_before']:,} → {facts['parameters']:,} parameters, "
        f"{facts['macs_before']:,} → {facts['macs']:,} MACs at length {model.length}, "
        f"so about {facts['macs_before'] / facts['macs']:.2f}x faster by MACs; `bench` measures",
    )


@app.command()
def bench(
    folder: Either,
    budget: Budgets = None,
    data: Data = None,
    batch: Annotated[int, typer.Option(help="Rows in a call.")] = 64,
    repeats: Annotated[int, typer.Option(help="Timed calls of each arm.")] = 41,
    threads: Annotated[int, typer.Option(help="Threads of torch or ONNX Runtime.")] = 1,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Beside the ways in which others would run it: torch eager and compiled, ONNX "
            "Runtime and OpenVINO, dense and int8; its own exported file in both precisions.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Time a checkpoint at each budget: uncut, soft, hard mask, skipping and cut, taking turns.

    Speed-ups are medians of paired ratios with a 95 % interval and ratios of medians, beside an
    estimate by multiply-accumulates, which attention-heavy models can pass. Texts are padded to
    the whole length. Run nothing else meanwhile.

    Of an exported folder, its levels are timed, beside the highest one.
    """
    import torch

    from apportion.cli.exports import bench_export
    from apportion.elastic.card import BUDGETS
    from apportion.serving.bench.timing import elastic_arms, time_arms
    from apportion.serving.runtime.exported import is_export
    from apportion.study.records import provenance
    from apportion.study.report.speed_tables import latency_table
    from apportion.study.report.terminal import print_json, show
    from apportion.training.progress import working_bar

    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    if peers:
        if is_export(folder) or budget:
            raise ValueError("--peers is of a checkpoint, at the levels that its export has")
        _bench_peers(folder, data, batch, repeats, threads, as_json)
        return
    if is_export(folder):
        measured = bench_export(folder, budget, data, batch=batch, repeats=repeats, threads=threads)
    else:
        model, task = _with_task(folder, data)
        inputs, _ = task.test.batch(torch.arange(min(batch, len(task.test))), padded=True)
        with working_bar("bench", err) as bar:
            arms = elastic_arms(model, budget or model.within(BUDGETS[:-1]))
            measured = time_arms(arms, [inputs], repeats, threads, progress=bar)
    measured = [{**record, **provenance()} for record in measured]
    if as_json:
        print_json(measured)
    else:
        show([latency_table(measured)])


def _bench_peers(
    checkpoint: Path, data: Path | None, rows: int, repeats: int, threads: int, as_json: bool
) -> None:
    """Every way to run a checkpoint, timed in turns; their files are not kept."""
    import tempfile

    from apportion.study.comparison import compare_once
    from apportion.study.report.peer_tables import comparison_tables
    from apportion.study.report.terminal import print_json, show
    from apportion.training.progress import working_bar

    with tempfile.TemporaryDirectory() as work, working_bar("bench", err) as bar:
        plan, measured = compare_once(
            checkpoint,
            data=data,
            rows=rows,
            repeats=repeats,
            threads=threads,
            work=Path(work),
            progress=bar,
        )
    if as_json:
        print_json(measured)
        return
    shown = ("speed-", "beside-", "left-out")
    tables = comparison_tables(plan, measured)
    show([table for table in tables if table.rows and table.name.startswith(shown)])


def _with_task(checkpoint: Path, data: Path | None) -> tuple[Elastic, Task]:
    """A checkpoint's model and the task that it was trained on."""
    from apportion.elastic.checkpoint import load
    from apportion.study.production import task_of_checkpoint

    loaded = load(checkpoint)
    return loaded.require_elastic(), task_of_checkpoint(loaded, data)


def _refuse(folder: Path, **options: object) -> None:
    """Complains of an option that an exported folder has no use for."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"--{name} is for checkpoints; what the levels of {folder} keep was chosen when it "
                "was written"
            )


def _units(kept: dict[str, list[int]]) -> str:
    return ", ".join(f"{kind} {' '.join(map(str, i)) or 'none'}" for kind, i in kept.items())


def _tokens(shares: list[float] | None, layer: int) -> str:
    return f", {shares[layer]:.0%} of the tokens" if shares else ""


def _counts(kept: dict[str, list[int]]) -> str:
    return ", ".join(f"{len(indices)} {kind}" for kind, indices in kept.items())
