"""Commands that take a checkpoint: inspect, sweep, cut, bench."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli.main import AsJson, app, err

if TYPE_CHECKING:
    from torch import nn

    from apportion.data.task import Task
    from apportion.elastic.elastic import Elastic
    from apportion.elastic.evaluation import Form

Folder = Annotated[Path, typer.Argument(help="A checkpoint folder.", show_default=False)]
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
_BUDGETS = (0.25, 0.5, 0.75, 1.0)


@app.command()
def inspect(
    checkpoint: Folder, budget: Budgets = None, floor: Floor = None, as_json: AsJson = False
) -> None:
    """Show what a checkpoint holds, and which units it keeps at each budget."""
    from apportion.elastic.asking import asking_of, in_words
    from apportion.elastic.checkpoint import load
    from apportion.elastic.elastic import Elastic, plain_of
    from apportion.models.compute import count_macs, count_parameters
    from apportion.models.configs import config_of
    from apportion.models.sites import find_sites
    from apportion.study.report.table import Table
    from apportion.study.report.terminal import print_json, show

    loaded = load(checkpoint)
    plain = plain_of(loaded.model)
    facts: dict[str, Any] = {
        "kind": loaded.kind,
        "model": config_of(plain),
        "parameters": count_parameters(plain),
        "length": loaded.length,
        "macs": count_macs(plain, loaded.length),
        "recipes": [recipe["name"] for recipe in loaded.notes.get("recipes", [])],
        "task": loaded.notes.get("task"),
        "kept": loaded.kept and loaded.kept.to_dict(),
    }
    budgets: list[dict[str, Any]] = []
    if budget:
        _needs_gates(loaded.model, checkpoint)
    nested = isinstance(loaded.model, Elastic) and loaded.model.form == "nested"
    if isinstance(loaded.model, Elastic):
        facts |= asking_of(loaded.model)
        for asked in budget or loaded.model.within(_BUDGETS):
            allocation = loaded.model.allocation(asked, floor)
            soft = None if nested else float(loaded.model.cost(asked, "soft").detach())
            budgets.append(
                {
                    "budget": asked,
                    "cost_soft": soft and round(soft, 4),
                    "cost_hard": round(allocation.cost, 4),
                    "kept": allocation.to_dict(),
                }
            )
    if as_json:
        print_json({**facts, "budgets": budgets})
        return
    sites = find_sites(plain, ("heads",))
    counts = sorted({site.count for site in sites})
    typer.echo(
        f"{loaded.kind} checkpoint: {type(plain).__name__}, {len(sites)} layers x "
        f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} heads, hidden "
        f"{sites[0].hidden}, {facts['parameters']:,} parameters, {facts['macs']:,} MACs at length "
        f"{loaded.length}",
    )
    typer.echo(f"recipes: {' → '.join(facts['recipes']) or 'none'}")
    if isinstance(loaded.model, Elastic):
        typer.echo(in_words(loaded.model))
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
                _counts(k) if nested else _units(k),
            )
            for b in budgets
            for layer, k in b["kept"].items()
        )
        or tuple(("", "", "", layer, _units(k)) for layer, k in (facts["kept"] or {}).items()),
    )
    if table.rows:
        show([table])


@app.command()
def sweep(
    checkpoint: Folder,
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
    """Evaluate a checkpoint at many budgets (those from 0.10 to 1.00 that it was made for)."""
    from apportion.elastic.evaluation import FORMS, SWEEP, is_monotone, swept_forms
    from apportion.elastic.evaluation import sweep as run_sweep
    from apportion.study.report.table import Table
    from apportion.study.report.terminal import print_json, show
    from apportion.training.progress import working_bar

    model, task = _elastic(checkpoint, data)
    forms: list[Form] = []
    for name in form or swept_forms(model):
        if name not in FORMS:
            raise ValueError(f"a form is one of {', '.join(FORMS)}, not {name!r}")
        forms.append(name)
    budgets = tuple(budget or model.within(SWEEP))
    points = []
    with working_bar("sweep", err) as bar:
        for number, asked in enumerate(budgets):
            bar(number, len(budgets))
            points += run_sweep(model, task.split(split), [asked], forms, floor)
    points.sort(key=lambda point: (forms.index(point.form), point.budget))
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
    from apportion.elastic.checkpoint import Checkpoint, load, save
    from apportion.models.compute import count_macs, count_parameters
    from apportion.study.report.terminal import print_json

    if into.resolve() == checkpoint.resolve():
        raise ValueError("--out is the checkpoint itself; choose another folder")
    loaded = load(checkpoint)
    model = _needs_gates(loaded.model, checkpoint)
    floor = model.floor if floor is None else floor
    kept = model.allocation(budget, floor)
    smaller = model.cut(budget, floor)
    notes = {**loaded.notes, "cut": {"budget": budget, "floor": floor, "cost": kept.cost}}
    if "measured" in notes:
        # Other units stay with another floor than it was measured with.
        points = notes["measured"] if floor == model.floor else []
        notes["measured"] = [p for p in points if p["budget"] == budget and p["form"] != "soft"]
    save(Checkpoint(smaller, notes, kept, loaded.words), into, self_contained)
    facts: dict[str, Any] = {
        "budget": budget,
        "cost": kept.cost,
        "units": kept.count,
        "parameters": count_parameters(smaller),
        "parameters_before": count_parameters(model.plain()),
        "macs": count_macs(smaller, model.length),
        "macs_before": count_macs(model.plain(), model.length),
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
    checkpoint: Folder,
    budget: Budgets = None,
    data: Data = None,
    batch: Annotated[int, typer.Option(help="Rows in a call.")] = 64,
    repeats: Annotated[int, typer.Option(help="Timed calls of each arm.")] = 41,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Time a checkpoint at each budget: uncut, soft, hard mask, skipping and cut, taking turns.

    Speed-ups are medians of paired ratios with a 95 % interval and ratios of medians, beside an
    estimate by multiply-accumulates, which attention-heavy models can pass. Texts are padded to
    the whole length. Run nothing else meanwhile.
    """
    import torch

    from apportion.serving.timing import elastic_arms, time_arms
    from apportion.study.records import provenance
    from apportion.study.report.speed_tables import latency_table
    from apportion.study.report.terminal import print_json, show
    from apportion.training.progress import working_bar

    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    model, task = _elastic(checkpoint, data)
    inputs, _ = task.test.batch(torch.arange(min(batch, len(task.test))), padded=True)
    with working_bar("bench", err) as bar:
        arms = elastic_arms(model, budget or model.within(_BUDGETS[:-1]))
        measured = time_arms(arms, [inputs], repeats, threads, progress=bar)
    measured = [{**record, **provenance()} for record in measured]
    if as_json:
        print_json(measured)
    else:
        show([latency_table(measured)])


def _elastic(checkpoint: Path, data: Path | None) -> tuple[Elastic, Task]:
    """A checkpoint's model and the task that it was trained on, its rows read or drawn again."""
    from apportion.elastic.checkpoint import load
    from apportion.study.experiment import task_of

    loaded = load(checkpoint)
    model = _needs_gates(loaded.model, checkpoint)
    spec = dict(loaded.notes.get("task") or {})
    if not spec:
        raise ValueError(f"{checkpoint} does not say which task it was trained on")
    try:
        task = task_of(spec, data)
    except ValueError as error:
        raise ValueError(f"the task that {checkpoint} names can't be built: {error}") from None
    built = task.build(loaded.words)
    if loaded.notes.get("data") not in (None, built.digest()):
        raise ValueError(f"{checkpoint} was trained on other rows than there are now")
    return model, built


def _needs_gates(model: nn.Module, checkpoint: Path) -> Elastic:
    from apportion.elastic.elastic import Elastic

    if not isinstance(model, Elastic):
        raise ValueError(f"{checkpoint} has no gates, so it has no budgets; give an elastic one")
    return model


def _units(kept: dict[str, list[int]]) -> str:
    return ", ".join(f"{kind} {' '.join(map(str, i)) or 'none'}" for kind, i in kept.items())


def _counts(kept: dict[str, list[int]]) -> str:
    return ", ".join(f"{len(indices)} {kind}" for kind, indices in kept.items())
