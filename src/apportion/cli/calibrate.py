"""The command that measures this machine: calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli.main import AsJson, app, err

if TYPE_CHECKING:
    from apportion.serving.milliseconds.forecast import Forecast

_BUSY = 0.25  # a margin above this says that the machine was not idle


@app.command(
    epilog="[bold]apportion calibrate runs/mine/onnx[/], then "
    "[bold]apportion predict runs/mine/onnx texts.csv --within-ms 5[/]. How good the forecast is: "
    "[bold]apportion calibrate runs/mine/onnx --check --records forecast.jsonl[/]"
)
def calibrate(
    folder: Annotated[
        Path,
        typer.Argument(help="A checkpoint, or a folder that export wrote.", show_default=False),
    ],
    seconds: Annotated[float, typer.Option(help="Time that measuring may take.")] = 60.0,
    threads: Annotated[
        int, typer.Option(help="Threads of torch or ONNX Runtime; the forecast is of these.")
    ] = 1,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Measure nothing new: see how well the forecast foretells calls."
        ),
    ] = False,
    repeats: Annotated[int, typer.Option(help="Calls of each kind in a check.")] = 30,
    records: Annotated[
        Path | None, typer.Option(help="A file that the records of a check are added to.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how long calls take on this machine, so that budgets can be milliseconds.

    Writes forecast.json into the folder. Do it while nothing else is running. The file is of this
    machine, these weights and these threads; anywhere else it is refused.
    """
    from apportion.serving.bench.calibration import calibrate as run_calibrate
    from apportion.serving.runtime.session import Runtime
    from apportion.training.progress import working_bar

    if records is not None and not check:
        raise ValueError("--records are those of a check; add --check")
    runtime = Runtime(folder, threads=threads)
    if check:
        _check(runtime, repeats, records, as_json)
        return
    with working_bar("calibrate", err) as bar:
        forecast = run_calibrate(runtime, seconds=seconds, progress=bar)
    if forecast.margin > _BUSY:
        err.print(
            f"one call of 20 took {100 * forecast.margin:.0f} % longer than its forecast or more: "
            "calibrate again when the machine is idle",
            soft_wrap=True,
            highlight=False,
        )
    if as_json:
        _print_json(forecast.to_dict())
    else:
        _show(forecast)


def _check(runtime: Any, repeats: int, file: Path | None, as_json: bool) -> None:
    """Foretold beside measured: a summary, and records where they are asked for."""
    from apportion.serving.bench.calibration import summarise
    from apportion.study.measuring import time_forecast
    from apportion.study.records import append
    from apportion.training.progress import working_bar

    with working_bar("check", err) as bar:
        checks = time_forecast(runtime, repeats=repeats, progress=bar)
    if file is not None:
        append(file, *checks)
    found = summarise(checks)
    if as_json:
        _print_json(found)
        return
    typer.echo(
        f"{len(checks)} targets: the forecast is off by {100 * found['median_error']:.1f} % "
        f"(median) and {100 * found['p95_error']:.1f} % (95th percentile); "
        f"{100 * found['calls_within']:.1f} % of the calls ended within their target, and at "
        f"{100 * found['p95_within']:.0f} % of the targets at least 95 of 100 calls did"
    )


def _show(forecast: Forecast) -> None:
    """Milliseconds of each level for small and large calls."""
    lengths = sorted({forecast.lengths[0], forecast.lengths[-1]})
    shapes = [
        (rows, length) for length in lengths for rows in forecast.rows[:: len(forecast.rows) - 1]
    ]
    typer.echo("".join(f"{cell:>10}" for cell in ["level", *(f"{r} x {n}" for r, n in shapes)]))
    for level in forecast.levels:
        times = (forecast.milliseconds(rows=r, length=n, level=level) for r, n in shapes)
        typer.echo(
            "".join(f"{cell:>10}" for cell in [f"{level:g}", *(f"{ms:.2f}" for ms in times)])
        )
    typer.echo(
        "milliseconds of a call, rows x tokens; "
        f"19 of 20 calls stay within {100 * forecast.margin:.0f} % more"
    )


def _print_json(values: dict[str, Any]) -> None:
    from apportion.files import json_text

    typer.echo(json_text(values, "the forecast"), nl=False)
