"""The command that loads servers on this machine: load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.cli.main import app, err


@app.command(
    epilog="[bold]apportion load runs/mine/onnx texts.txt --load 2 --out load.jsonl[/] sends twice "
    "what the whole budget carries, in bursts, to a server that lowers budgets and to three that "
    "do not."
)
def load(
    folder: Annotated[
        Path,
        typer.Argument(help="A checkpoint, or a folder that export wrote.", show_default=False),
    ],
    texts: Annotated[
        Path,
        typer.Argument(
            help="Texts to send, one per line; or a CSV file with label and text.",
            show_default=False,
        ),
    ],
    multiple: Annotated[
        float, typer.Option("--load", help="Multiple of what the budget of --of carries.")
    ] = 2.0,
    of: Annotated[
        str, typer.Option(help="whole or small: the budget that --load is of.")
    ] = "whole",
    trace: Annotated[
        str,
        typer.Option(help="poisson, gamma:CV2, or a CSV file with a column TIMESTAMP."),
    ] = "gamma:8",
    seconds: Annotated[float, typer.Option(help="Length of a turn, 600 at most.")] = 20.0,
    turns: Annotated[int, typer.Option(help="Turns of each arm.")] = 1,
    rows: Annotated[int, typer.Option(help="Texts in a request.")] = 1,
    patience: Annotated[
        float, typer.Option(help="Deadline, as a multiple of a request's time at the whole budget.")
    ] = 4.0,
    arms: Annotated[
        str,
        typer.Option(
            help="Of ladder, slackfit, static-full, static-small, static-LEVEL, refuse-at-N."
        ),
    ] = "ladder,static-full,static-small,refuse-at-512",
    one_tier: Annotated[
        bool, typer.Option("--one-tier", help="All requests at the dearest tier.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of arrivals and texts.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="A file that the records are added to.")
    ] = None,
) -> None:
    """Send load to servers of one model and count: in time, lowered, refused, lost.

    Starts a server per arm on loopback, measures what the whole and the smallest budget carry, and
    lets the arms take turns on the same arrivals. Times to send are fixed beforehand; a run whose
    client was late itself is marked void. Where labels are known, right answers are counted.
    """
    from apportion.study.load_arms import LoadPlan, read_texts, run_load
    from apportion.study.records import append

    lines = read_texts(texts)
    plan = LoadPlan(
        load=multiple,
        of=of,
        trace=trace,
        seconds=seconds,
        turns=turns,
        rows=rows,
        patience=patience,
        mixed=not one_tier,
        seed=seed,
        arms=tuple(arms.split(",")),
    )

    def tell(said: str) -> None:
        err.print(said, soft_wrap=True, highlight=False, markup=False)

    typer.echo(
        f"{'arm':<16}{'sent':>7}{'in time':>9}{'budget':>8}{'refused':>9}{'lost':>6}{'p99 ms':>9}"
    )
    subject = texts.resolve().parent.name
    for record in run_load(folder, lines, plan, subject=subject, tell=tell):
        if out is not None:
            append(out, record.to_dict())
        found = record.results
        budget = "–" if found["mean_budget"] is None else f"{found['mean_budget']:.3f}"
        typer.echo(
            f"{record.arm:<16}{found['sent']:>7}{100 * found['attainment']:>8.2f}%{budget:>8}"
            f"{found['refused']:>9}{found['lost']:>6}{found['p99_ms']:>9.1f}"
            + _accuracy(found)
            + ("  void: the client was late" if found["void"] else "")
        )


def _accuracy(found: dict[str, Any]) -> str:
    rows = found.get("answered_rows", 0)
    return f"  {100 * found['right_rows'] / rows:.2f} % right" if rows else ""
