"""The command that serves a model over HTTP: serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.main import app, err


@app.command(
    epilog="[bold]apportion serve runs/mine/onnx[/], then "
    "[bold]curl http://127.0.0.1:8000/v1/classify -H 'Content-Type: application/json' "
    '-d \'{"input": "They won the final.", "tier": "balanced"}\'[/]. '
    "A page to try it on is at http://127.0.0.1:8000/."
)
def serve(
    folder: Annotated[
        Path,
        typer.Argument(help="A checkpoint, or a folder that export wrote.", show_default=False),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            help="Tiers, limits, keys and policy as TOML. \\[default: low-cost to 0.25, balanced "
            "to 0.5, high-quality to 1]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.")] = 8000,
    anyone: Annotated[
        bool, typer.Option("--open", help="Listen at an address of the network without keys.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line per request on stderr.")] = False,
) -> None:
    """Serve a model: each request at the budget that its tier, target and the load allow.

    Under load budgets go down before anyone waits too long, and every answer says what was done.
    SIGTERM answers what waits and ends; SIGHUP reads the folder and the configuration again. A
    folder without forecast.json is calibrated first.
    """
    from apportion.serving.server.configuration import read_config
    from apportion.serving.server.lifetime import run_server
    from apportion.serving.server.terms import Config
    from apportion.training.progress import working_bar

    def read() -> Config:
        return Config() if config is None else read_config(config)

    run_server(
        folder,
        read,
        host=host,
        port=port,
        anyone=anyone,
        quiet=quiet,
        watching=lambda: working_bar("calibrate", err),
        tell=lambda said: err.print(said, soft_wrap=True, highlight=False, markup=False),
    )
